"""Members of a family before their tables are made: those with one choice of the main block, and one by one."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.solver.training.costs.stage_table import Sharding
from meshwright.solver.training.space.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Entry:
    """Members with one candidate and one choice of the main block, and their bound. A candidate whose ``some_layers`` are
    recomputed has not yet a number of them."""

    bound: float
    candidate: Candidate
    main: tuple[int, ...]
    some_layers: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """A member whose tables are not made yet."""

    candidate: Candidate
    sharding: Sharding
    some_layers: bool
