"""The findings of a search of training plans: the best with its proven bound, others beside it, and what did not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.solver.training.costs.evaluate import Decision, DecisionCost
from meshwright.solver.training.search.partition import MemoryShortfall
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh

RELATIVE_TIE = 1e-12
"""Step times closer than this count as equal; the canonical order then decides."""


@dataclass(frozen=True)
class Solved:
    """A decision with its cost, and what it is worth by the search's aim; smaller is better."""

    decision: Decision
    cost: DecisionCost
    value: float

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Canonical order among equals."""
        return (self.decision.candidate.sort_key, self.decision.sharding)


@dataclass
class SearchResult:
    """The result of a search; ``bound`` is in the unit of its aim.

    ``refused`` holds, for each mesh, the member that looked faster than the best plan and came closest to fitting. ``near``
    are plans within reach of the best that were looked for once it was proven, ``all_near`` says that there are no other kinds.
    """

    best: Solved | None = None
    bound: float | None = None
    alternatives: list[Solved] = field(default_factory=list)
    refused: dict[Mesh, tuple[Candidate, MemoryShortfall]] = field(default_factory=dict)
    n_candidates: int = 0
    n_members: int = 0
    n_solved: int = 0
    complete: bool = False
    near: list[Solved] = field(default_factory=list)
    all_near: bool = False

    def refuse(self, candidate: Candidate, shortfall: MemoryShortfall) -> None:
        """Note a member that does not fit, if it is the closest of its mesh."""
        known = self.refused.get(candidate.mesh)
        if known is None or shortfall.lacking_bytes < known[1].lacking_bytes:
            self.refused[candidate.mesh] = (candidate, shortfall)

    def take(self, solved: Solved) -> None:
        """Keep the better of two plans as the best; the other becomes an alternative."""
        best = self.best
        if best is None:
            self.best = solved
            return
        difference = solved.value - best.value
        tie = abs(difference) <= RELATIVE_TIE * best.value
        if (difference < 0 and not tie) or (tie and solved.sort_key < best.sort_key):
            self.best = solved
            self.alternatives.append(best)
        else:
            self.alternatives.append(solved)
