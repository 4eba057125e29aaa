"""Cost tables of a pipeline stage: the records that the search, the partition and the report share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.blocks.mesh import StageTopology
from meshwright.solver.problem.layer_dag import LayerDag

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StageKind:
    """The properties that distinguish one stage position from another: its devices, and the topology of its axes.

    ``devices`` has more than one entry where a stage spans node groups; the slowest then decides each time and the
    smallest memory the capacity. ``borders`` are the links to the stage before and to the one behind; at an end of the
    pipeline, the only one twice.
    """

    devices: tuple[Device, ...]
    topology: StageTopology
    borders: tuple[GroupTopology, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Kinds are keys wherever costs of stages are kept, and the hash is long in the making.
        return hash((self.devices, self.topology, self.borders))


Sharding = tuple[tuple[int, ...], ...]
"""For each distinct block, the strategy index of each of its operators."""


@dataclass(frozen=True, eq=False)
class StageTable:
    """Costs of every layer on one kind of stage. Rows are the candidate's recompute modes, columns the layers.

    time_s             steady time of a micro-batch (forward, backward, recomputation, exposed communication)
    activation_bytes   kept for each micro-batch in flight
    transient_bytes    lives only while the layer runs: re-made activations, gathered weights, loss buffers
    static_bytes       weights, gradients, optimizer state, and of token slices gradients of keys and values (by layer)
    extra_s            what a step adds once: exposed gradient reduction and parameter gather, optimizer (by layer)
    boundary_s         sending to the next stage and back, each micro-batch, as far as it is not hidden
    beside_s           sending that goes on beside the compute of other micro-batches: a stage takes no less time, and each
                       micro-batch waits for it on its way through the pipeline
    step_s             what a step adds once to a stage after the first: its own first bucket, which nothing hides, and
                       the host's work between steps (those of the model's first stage are in its first layer's extra_s)
    capacity_bytes     bytes of tensors that fit with the chance that the request asks for: usable memory less its margin, the
                       framework's overhead and what their allocator adds
    usable_bytes       memory of the device that the request lets plans use
    law                how much more than is counted a run takes; activation, side and transient bytes have its factors
    waiting            how long the schedule waits, over 1F1B (`costmodels.pipeline.waiting_ratio`)
    slices             what each token slice takes of a micro-batch's time in all layers; None: sequences pass whole
    dag                which layer reads which, of a model that branches; boundary_s and beside_s are then of each tensor that
                       goes on
    side_bytes         then kept for each micro-batch in flight of each tensor that a stage reads beside its layers' entries
    """

    time_s: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    boundary_s: float
    step_s: float
    capacity_bytes: float
    usable_bytes: float
    law: MemoryLaw
    parts: StageParts
    waiting: float = 1.0
    beside_s: float = 0.0
    slices: SliceShares | None = None
    dag: LayerDag | None = None
    side_bytes: float = 0.0

    def of_first_mode(self) -> StageTable:
        """The table of the first of its recompute modes alone."""
        parts = replace(self.parts, moves_s=self.parts.moves_s[:1], host_activation_bytes=self.parts.host_activation_bytes[:1])
        return replace(
            self,
            time_s=self.time_s[:1],
            activation_bytes=self.activation_bytes[:1],
            transient_bytes=self.transient_bytes[:1],
            parts=parts,
        )


@dataclass(frozen=True, eq=False)
class StageParts:
    """The same costs taken apart, by layer, for the report; and what lies in host memory, a device's share of which is
    ``host_capacity_bytes`` beside ``host_buffer_bytes``, through which goes what lies on the node's drives.

    first_bucket_s                   [layer]: what a step adds once to a stage that begins with the layer (`StageTable.step_s`)
    moves_s, host_activation_bytes   [mode, layer]: time of moving activations that nothing hides, and their bytes
    slice_gradients_bytes            [layer]: gradients of keys and values that wait for earlier slices, of one micro-batch
    beside_state_bytes               [layer]: what an implementation keeps beside the training state (`bytes_beside_state`)
    """

    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    forward_s: FloatArray
    compute_s: FloatArray
    tp_comm_s: FloatArray
    cp_comm_s: FloatArray
    dp_comm_s: FloatArray
    ep_comm_s: FloatArray
    optimizer_s: FloatArray
    step_host_s: float
    first_bucket_s: FloatArray
    overhead_bytes: float
    moves_s: FloatArray
    host_static_bytes: FloatArray
    host_activation_bytes: FloatArray
    host_buffer_bytes: float
    host_capacity_bytes: float
    nvme_bytes: FloatArray
    nvme_capacity_bytes: float
    slice_gradients_bytes: FloatArray
    beside_state_bytes: FloatArray


def max_table(tables: list[StageTable]) -> StageTable:
    """The table of a stage on several devices: each entry the worst of them, the report's parts those of the slowest."""
    # By what does not depend on the recompute modes that a table has rows of: a plan is predicted with its own alone.
    slowest = max(tables, key=lambda table: float(table.parts.compute_s.sum()))
    return StageTable(
        time_s=np.max([t.time_s for t in tables], axis=0),
        activation_bytes=np.max([t.activation_bytes for t in tables], axis=0),
        transient_bytes=np.max([t.transient_bytes for t in tables], axis=0),
        static_bytes=np.max([t.static_bytes for t in tables], axis=0),
        extra_s=np.max([t.extra_s for t in tables], axis=0),
        boundary_s=max(t.boundary_s for t in tables),
        step_s=max(t.step_s for t in tables),
        capacity_bytes=min(t.capacity_bytes for t in tables),
        usable_bytes=min(t.usable_bytes for t in tables),
        law=slowest.law,
        parts=replace(
            slowest.parts,
            first_bucket_s=np.max([t.parts.first_bucket_s for t in tables], axis=0),
            host_capacity_bytes=min(t.parts.host_capacity_bytes for t in tables),
            nvme_capacity_bytes=min(t.parts.nvme_capacity_bytes for t in tables),
        ),
        waiting=slowest.waiting,
        beside_s=max(t.beside_s for t in tables),
        slices=slowest.slices,
        dag=slowest.dag,
        side_bytes=max(t.side_bytes for t in tables),
    )
