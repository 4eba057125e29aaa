"""Facts of serving engines and of the launchers that start them: the serving plans that they can express."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.serving.engine_profile import ServingEngine


class PromptSharing(Enum):
    """Models whose prompts the ranks of a worker may share, token by token (context parallelism of prefill)."""

    NONE = auto()
    WITHOUT_STATES = auto()
    """Beside whole caches, in models without recurrent states, which go from token to token."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The layouts that a serving engine can run; its constants are in `costmodels.serving.engine_profile`.

    spreads_over_some         whether experts may be spread over some of the ranks of a stage; else over all or none
    splits_caches             whether a cache may be split along the sequence
    groups_of_several_ranks   whether attention groups may have several ranks each, where there are several groups
    prompt_sharing            whether ranks may share the tokens of a prompt
    """

    spreads_over_some: bool
    splits_caches: bool
    groups_of_several_ranks: bool = True
    prompt_sharing: PromptSharing = PromptSharing.NONE


class ServingForm(Enum):
    """Forms of serving plans that launchers may start, by the names of their layouts."""

    REPLICAS = "replicas"
    """Workers that do both phases, all alike."""
    POOLS = "pools"
    """Prefill workers and decode workers."""
    KINDS = "kinds"
    """Workers of several kinds, each of which does both phases."""
    SWITCHED = "switched"
    """Workers in layouts that switch between prompts and answers."""


@dataclass(frozen=True, slots=True)
class Server:
    """The serving plans that a launcher can start.

    engine   the engine that it starts
    forms    forms of plans that it has commands for
    """

    engine: ServingEngine
    forms: frozenset[ServingForm]
