"""Facts of serving engines and of the launchers that start them: the serving plans that they can express."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine


@dataclass(frozen=True, slots=True)
class ServedShape:
    """Sizes of a model that engines have rules for.

    heads, kv_heads   of attention; latent attention has one key/value head
    experts           routed experts of a layer, 0 without; ``expert_ffn`` their width
    states            whether layers keep recurrent states
    block             columns that a rank's share of an expert must be a multiple of
    """

    heads: int
    kv_heads: int
    experts: int
    expert_ffn: int
    states: bool
    block: int


class PromptSharing(Enum):
    """Models whose prompts the ranks of a worker may share, token by token (context parallelism of prefill)."""

    NONE = auto()
    WITHOUT_STATES = auto()
    """Beside whole caches, in models without recurrent states, which go from token to token."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine's rules beyond even division; its constants are in `costmodels.serving.engine_profile`.

    runs             whether it runs a grid of ranks for a model
    prompt_sharing   whether ranks may share the tokens of a prompt
    """

    runs: Callable[[RankGrid, ServedShape], bool]
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


def splits_caches(grid: RankGrid, shape: ServedShape) -> bool:
    """Return True if KV parallelism saves anything: heads are split as far as they go, and no further (Helix, TPA <= K)."""
    if grid.kvp == 1:
        return True
    per_kv_head = shape.heads // shape.kv_heads
    return grid.attention_dp == 1 and grid.tp == shape.kv_heads and per_kv_head % grid.kvp == 0 and not shape.states
