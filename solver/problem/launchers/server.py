"""What serving engines and the launchers that start them can express of serving plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine


@dataclass(frozen=True, slots=True)
class ServedShape:
    """What engines ask of a model.

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
    """Whether ranks of a worker may share the tokens of a prompt (context parallelism of prefill)."""

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
    """Forms of serving plans that a launcher may start."""

    REPLICAS = auto()
    """Workers that do both phases, all alike."""
    POOLS = auto()
    """Prefill workers and decode workers."""
    KINDS = auto()
    """Workers of several kinds, each of which does both phases."""
    SWITCHED = auto()
    """Workers in layouts that switch between prompts and answers."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a launcher of serving plans can start.

    engine   the engine that it starts
    forms    forms of plans that it has commands for
    """

    engine: ServingEngine
    forms: frozenset[ServingForm]


def splits_caches(grid: RankGrid, shape: ServedShape) -> bool:
    """Whether KV parallelism saves anything: heads are split as far as they go, and no further (Helix, TPA <= K)."""
    if grid.kvp == 1:
        return True
    per_kv_head = shape.heads // shape.kv_heads
    return grid.attention_dp == 1 and grid.tp == shape.kv_heads and per_kv_head % grid.kvp == 0 and not shape.states
