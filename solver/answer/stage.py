"""A stage of a plan: its layers, devices, memory and times, how its operators are sharded, and the micro-batches it sees."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload
from meshwright.costmodels.units import STRICT_RECORD, Seconds
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.choices import Gradients, Recompute

# The number of ranks of each axis of a plan's mesh.


@dataclass(frozen=True, slots=True)
class Axes:
    """Degrees of the mesh axes.

    Serving: ``dp`` are replicas; a pipeline stage of a replica has tp x kvp x cp x attention_dp ranks. ``kvp`` ranks split each
    cache along the sequence, ``cp`` groups share prompts, ``attention_dp`` groups run attention for requests of their own,
    ``ep`` groups hold experts.
    Training: ``etp`` ranks share an expert, as many as tp where it is None; of the ``cp`` ranks of a sequence ``ulysses``
    neighbours exchange tokens for heads, and cp / ulysses form a ring.
    """

    __pydantic_config__ = STRICT_RECORD

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    attention_dp: int = 1
    kvp: int = 1
    ulysses: int = 1
    etp: int | None = None


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """Layers ``first`` .. ``first + count - 1`` of the model, all copies of one block."""

    __pydantic_config__ = STRICT_RECORD

    block: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class DeviceRange:
    """Ranks ``first`` .. ``first + count - 1``."""

    __pydantic_config__ = STRICT_RECORD

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class OperatorSharding:
    """The sharding of an operator over the tp axis: the dim that is split, or "replicate"."""

    __pydantic_config__ = STRICT_RECORD

    block: str
    operator: str
    strategy: str


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of the fullest device of a stage, by kind, in bytes, median; ``capacity_bytes`` is what may be used.

    ``fragmentation_bytes`` is what runs take over what is counted of them, ``learned_bytes`` by how much more or less runs of
    one's own took.

    ``host_bytes`` are those of each device in its host's memory, ``nvme_bytes`` those on its node's drives, both
    in no sum."""

    __pydantic_config__ = STRICT_RECORD

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    transient_bytes: float
    overhead_bytes: float
    capacity_bytes: float
    kv_cache_bytes: float = 0.0
    fragmentation_bytes: float = 0.0
    host_bytes: float = 0.0
    nvme_bytes: float = 0.0
    learned_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All kinds together, median."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.transient_bytes
            + self.overhead_bytes
            + self.kv_cache_bytes
            + self.fragmentation_bytes
            + self.learned_bytes
        )


# Without slots, and before what a stage chooses: the fields of a document are in this order.
@dataclass(frozen=True)
class _Stage:
    """The fields of a stage that are none of its `StageChoices`."""

    blocks: tuple[LayerSpan, ...]
    devices: tuple[DeviceRange, ...]
    axes: Axes
    recompute: Recompute
    zero_stage: int
    time_s: Seconds
    extra_s: Seconds
    in_flight: float
    memory: StageMemory
    chunk_layers: tuple[int, ...] = ()
    shard_ranks: int | None = None
    offload: Offload = NOTHING_OFFLOADED
    gradients: Gradients = Gradients.KEPT
    shardings: tuple[OperatorSharding, ...] = ()
    sequence_parallel: bool | None = None
    hidden_s: Seconds = 0.0


@dataclass(frozen=True)
class Stage(StageChoices, _Stage):
    """A pipeline rank: which layers on which devices, and how.

    time_s        steady time of one micro-batch, forward and backward (serving: one decode step)
    hidden_s      sending that goes on beside time_s, under the passes of other micro-batches (eager-1F1B)
    extra_s       what the step's first and last micro-batch add: gradient reduction, optimizer, parameter all-gather
    in_flight     micro-batches whose activations are held at once (a fraction where a rank holds several model chunks)
    shard_ranks   neighbours among which ZeRO shards, where they are fewer than dp x cp
    gradients     whether they are kept until the step's update, or released layer by layer
    offload       shares of optimizer states and saved activations that lie in host memory
    chunk_layers  layers of each model chunk (virtual stage) on the rank, in order of the model; empty: one chunk
    shardings, sequence_parallel   those of this stage where stages may differ; else empty and None: the plan's
    """

    __pydantic_config__ = STRICT_RECORD


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Sequences a replica runs at once, and how many such micro-batches a step has."""

    __pydantic_config__ = STRICT_RECORD

    size: int
    count: int
