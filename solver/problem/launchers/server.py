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
class EngineFacts:
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
class CacheMoves:
    """The servers of two pools between which a launcher moves caches.

    of_tp_alone     whether they have tensor parallelism alone: no pipelines, attention groups, split caches or shared prompts
    to_fewer_ranks  whether a decode server may have a part of the tp of a prefill server; any may have a multiple of it
    stages_alike    whether decode servers of several pipeline stages have as many as prefill servers
    """

    of_tp_alone: bool
    to_fewer_ranks: bool
    stages_alike: bool = True


@dataclass(frozen=True, slots=True)
class Server:
    """The serving plans that a launcher can start.

    engine       the engine that it starts
    forms        forms of plans that it has commands for
    cache_moves  the pools that it joins; None of a launcher that has no pools
    """

    engine: ServingEngine
    forms: frozenset[ServingForm]
    cache_moves: CacheMoves | None = None
