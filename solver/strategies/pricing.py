"""The costs of every strategy of an operator: time of each pass, and memory by the part of the step in which it is held."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import attention_backward_s, attention_forward_s, sustained_memory_s
from meshwright.costmodels.kernels.operator_time import OperatorTime, operator_time
from meshwright.costmodels.memory.training_state import Optimizer, optimizer_traffic_bytes, state_bytes_per_parameter
from meshwright.costmodels.model.dims import BATCH, VOCAB
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import HAND_FUSED, Implementation
from meshwright.costmodels.model.operators import OperatorKind, forward_flops, key_tokens, query_tokens
from meshwright.costmodels.network.overlap import Stream, passes_exposed_s
from meshwright.costmodels.units import DType
from meshwright.solver.strategies.device_mesh import DeviceMesh, TensorShape
from meshwright.solver.strategies.resharding import TransferTimes
from meshwright.solver.strategies.strategy import Assignment, PlacedOperator
from meshwright.solver.strategies.traffic import (
    OperatorTransfer,
    StateSplit,
    TransferPhase,
    inner_traffic,
    weight_groups,
    weight_traffic,
)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The training step in which the operators run: formats, the optimizer and the split of its states, micro-batches of a
    step, one after another, and how a framework runs a layer."""

    dtype: DType = DType.BF16
    gradient_dtype: DType = DType.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    states: StateSplit = StateSplit.SPLIT
    microbatches: int = 1
    implementation: Implementation = HAND_FUSED


@dataclass(frozen=True, slots=True)
class Storage:
    """One way to keep the weights of an operator under an assignment.

    assignment      index of the assignment
    axes            mesh axes that split the storage only
    step_s          exposed time a step where the operator's own passes alone hide its transfers; with the optimizer
    traffic         transfers of weights and gradients
    updated_bytes   moved by the optimizer
    static_bytes    weights, gradients and optimizer states
    forward_bytes, backward_bytes   whole weights (and gradients) while the operator runs
    """

    assignment: int
    axes: tuple[int, ...]
    step_s: float
    traffic: tuple[OperatorTransfer, ...]
    updated_bytes: float
    static_bytes: float
    forward_bytes: float
    backward_bytes: float


@dataclass(frozen=True, eq=False)
class PricedOperator:
    """Assignments of an operator and what they cost, arrays with one entry an assignment.

    forward_s, backward_s    of a micro-batch, transfers inside the operator included
    output_bytes, gradient_bytes   for each output, a rank's block of it and of its gradient
    buffer_bytes             held in both passes beside inputs and outputs
    working_bytes            gradients of all inputs and outputs at once; none of those of the loss and of tables
    storages                 ways to keep the weights, by assignment; at least one each
    """

    placed: PlacedOperator
    assignments: tuple[Assignment, ...]
    forward_s: FloatArray
    backward_s: FloatArray
    output_bytes: tuple[FloatArray, ...]
    gradient_bytes: tuple[FloatArray, ...]
    buffer_bytes: FloatArray
    working_bytes: FloatArray
    storages: tuple[Storage, ...]


def price(
    placed: PlacedOperator, step: TrainingStep, times: TransferTimes, recipe: MatmulRecipe = MatmulRecipe.WORKING
) -> PricedOperator:
    """Price every assignment of an operator; ``recipe`` is how its product is cast."""
    assignments = tuple(placed.assignments())
    pricer = _Pricer(placed, step, times, recipe)
    passes = [pricer.passes(assignment) for assignment in assignments]
    shapes = [_shape(placed, len(placed.operator.inputs) + k, step.dtype) for k in range(len(placed.operator.outputs))]
    storages = [
        storage
        for index, assignment in enumerate(assignments)
        for storage in _undominated([pricer.storage(index, assignment, axes) for axes in _subsets(placed, assignment)])
    ]
    return PricedOperator(
        placed=placed,
        assignments=assignments,
        forward_s=np.array([time.forward_s for time in passes]),
        backward_s=np.array([time.backward_s for time in passes]),
        output_bytes=tuple(
            np.array([shape.local_bytes(placed.output(k, a), placed.mesh) for a in assignments])
            for k, shape in enumerate(shapes)
        ),
        gradient_bytes=tuple(
            np.array([shape.local_bytes(placed.output_gradient(k, a), placed.mesh) for a in assignments])
            for k, shape in enumerate(shapes)
        ),
        buffer_bytes=np.array([pricer.buffer_bytes(a) for a in assignments]),
        working_bytes=np.array([pricer.working_bytes(a) for a in assignments]),
        storages=tuple(storages),
    )


def _shape(placed: PlacedOperator, operand: int, dtype: DType) -> TensorShape:
    tensor = (*placed.operator.inputs, *placed.operator.outputs)[operand]
    return TensorShape(placed.shape(tensor), dtype.size_bytes, routed=tensor.name in placed.context.routed)


def _subsets(placed: PlacedOperator, assignment: Assignment) -> list[tuple[int, ...]]:
    axes = placed.storage_axes(assignment)
    return [chosen for count in range(len(axes) + 1) for chosen in itertools.combinations(axes, count)]


def _undominated(storages: list[Storage]) -> list[Storage]:
    """Storages that no other beats or equals in time, every transfer and every kind of memory; of equal ones the first."""
    kinds = sorted({transfer_kind(sent) for storage in storages for sent in storage.traffic})

    def figures(storage: Storage) -> tuple[float, ...]:
        sent = dict.fromkeys(kinds, 0.0)
        for transfer in storage.traffic:
            sent[transfer_kind(transfer)] += transfer.transfer.message_bytes
        static, passing = storage.static_bytes, (storage.forward_bytes, storage.backward_bytes)
        return (storage.step_s, storage.updated_bytes, static, *passing, *sent.values())

    kept: list[Storage] = []
    for storage in sorted(storages, key=figures):
        if not any(all(a <= b for a, b in zip(figures(other), figures(storage), strict=True)) for other in kept):
            kept.append(storage)
    return kept


class _Pricer:
    """Times of one operator; kernels of equal local sizes are asked for once."""

    def __init__(self, placed: PlacedOperator, step: TrainingStep, times: TransferTimes, recipe: MatmulRecipe):
        self.placed = placed
        self.step = step
        self.times = times
        self.recipe = recipe
        self._kernels: dict[tuple[object, ...], OperatorTime] = {}

    @property
    def mesh(self) -> DeviceMesh:
        return self.times.mesh

    def passes(self, assignment: Assignment) -> OperatorTime:
        """Forward and backward pass with the transfers inside the operator; a ring's hide under the other chunks."""
        kernel = self._kernel(assignment)
        traffic = inner_traffic(self.placed, assignment, self.step.dtype)
        forward, backward = (
            sum(part.seconds(self.times) for part in traffic if part.phase is phase)
            for phase in (TransferPhase.FORWARD, TransferPhase.BACKWARD)
        )
        ring = self.placed.ring(assignment)
        if ring > 1:
            hidden = (ring - 1) / ring
            forward = max(0.0, forward - kernel.forward_s * hidden)
            backward = max(0.0, backward - kernel.backward_s * hidden)
        return OperatorTime(kernel.forward_s + forward, kernel.backward_s + backward)

    def storage(self, index: int, assignment: Assignment, axes: tuple[int, ...]) -> Storage:
        """Weights kept with their storage split over ``axes``. As ZeRO's buckets do, transfers of weights run beside
        kernels: an operator's own stand for those of its neighbours."""
        step, mesh = self.step, self.placed.mesh
        groups = weight_groups(self.placed, assignment, axes)
        traffic = weight_traffic(groups, mesh, dtype=step.dtype, gradient_dtype=step.gradient_dtype, states=step.states)
        forward, backward, once = (self._seconds(traffic, phase) for phase in TransferPhase)
        kernel = self._kernel(assignment)
        of_each, of_last = (
            sum(
                map(
                    float,
                    passes_exposed_s(*sent, np.array(kernel.forward_s), np.array(kernel.backward_s), stream_of(self.mesh)),
                )
            )
            for sent in ((np.array(forward), np.array(backward)), (np.array(forward), np.array(backward + once)))
        )
        static = owned = 0.0
        whole = 0.0
        for group in groups:
            kept = group.elements / _product(mesh, group.stored)
            state = state_bytes_per_parameter(
                precision=step.dtype,
                gradient_dtype=step.gradient_dtype,
                optimizer=step.optimizer,
                zero_stage=1 if step.states is StateSplit.SPLIT else 0,
                shards=_product(mesh, group.summed),
            )
            static += kept * state.total
            owned += kept / (_product(mesh, group.summed) if step.states is StateSplit.SPLIT else 1)
            whole += group.elements if group.stored else 0.0
        update = optimizer_traffic_bytes(precision=step.dtype, gradient_dtype=step.gradient_dtype, optimizer=step.optimizer)
        # The weights in use and those being fetched are whole at the same time (as in the stage model's ZeRO-3).
        gathered = 2 * whole * step.dtype.size_bytes
        return Storage(
            assignment=index,
            axes=axes,
            step_s=(step.microbatches - 1) * of_each + of_last + float(sustained_memory_s(self.mesh.device, owned * update)),
            traffic=tuple(traffic),
            updated_bytes=owned * update,
            static_bytes=static,
            forward_bytes=gathered,
            backward_bytes=gathered + whole * step.gradient_dtype.size_bytes,
        )

    def buffer_bytes(self, assignment: Assignment) -> float:
        """The softmax of a loss holds its logits in fp32 and their gradient beside them."""
        operator = self.placed.operator
        if operator.kind is not OperatorKind.LOSS:
            return 0.0
        elements = operator.inputs[0].elements(self.placed.local_sizes(assignment))
        return elements * (DType.FP32.size_bytes + self.step.dtype.size_bytes)

    def working_bytes(self, assignment: Assignment) -> float:
        """Each rank has its share of what an operator splits over an axis (`solver.blocks.recompute.working_bytes`)."""
        operator, placed = self.placed.operator, self.placed
        if operator.kind in (OperatorKind.LOSS, OperatorKind.EMBEDDING) or VOCAB in operator.dims:
            return 0.0
        elements = sum(tensor.elements(placed.sizes) for tensor in (*operator.inputs, *operator.outputs))
        shares = _product(placed.mesh, tuple(axis for axis, rule in enumerate(assignment.rules) if rule is not None))
        return elements / shares * self.step.dtype.size_bytes

    def _seconds(self, traffic: list[OperatorTransfer], phase: TransferPhase) -> float:
        return sum(part.seconds(self.times) for part in traffic if part.phase is phase)

    def _kernel(self, assignment: Assignment) -> OperatorTime:
        local = self.placed.local_sizes(assignment)
        ring, gathers = self.placed.ring(assignment), self.placed.gathers_keys(assignment)
        key = (ring, gathers, *local.values())
        if key not in self._kernels:
            self._kernels[key] = self._gathered_keys(local) if gathers else self._own(local, ring)
        return self._kernels[key]

    def _own(self, local: dict[str, int], ring: int) -> OperatorTime:
        device: Device = self.mesh.device
        return operator_time(
            self.placed.operator,
            local,
            device=device,
            dtype=self.step.dtype,
            cp=ring,
            gradient_dtype=self.step.gradient_dtype,
            kernels=self.step.implementation.kernels,
            attention=self.step.implementation.attention,
            scan=self.step.implementation.scan,
            loss=self.step.implementation.loss,
            recipe=self.recipe,
        )

    def _gathered_keys(self, local: dict[str, int]) -> OperatorTime:
        """One kernel: a rank's queries, zig-zag over the sequence, against all keys."""
        operator, sizes = self.placed.operator, self.placed.sizes
        query, key, _ = operator.inputs
        head_dim = local[query.dims[-1]]
        queries, keys = local[query_tokens(operator)], sizes[key_tokens(operator)]
        keys_here = key.elements(local) // local[key.dims[-1]]
        forward, backward = (
            float(
                pass_s(
                    self.mesh.device,
                    self.step.dtype,
                    flops=forward_flops(operator, local, keys),
                    q_tokens=queries,
                    kv_tokens=keys,
                    batch=local[BATCH],
                    heads=query.elements(local) // (local[BATCH] * queries * head_dim),
                    kv_heads=keys_here // (local[BATCH] * local[key_tokens(operator)]),
                    head_dim=head_dim,
                )
            )
            for pass_s in (attention_forward_s, attention_backward_s)
        )
        return OperatorTime(forward, backward)


def stream_of(mesh: DeviceMesh) -> Stream:
    """The stream of transfers over a mesh."""
    spans = any(axis.topology.spans_nodes for axis in mesh.axes)
    return Stream.INTER_NODE if spans else Stream.INTRA_NODE


def transfer_kind(sent: OperatorTransfer) -> tuple[str, str, tuple[int, ...]]:
    """Transfers of one kind travel in one message where they are of one layer: phase, collective and axes."""
    return (sent.phase.value, sent.transfer.collective.value, sent.transfer.axes)


def _product(mesh: tuple[int, ...], axes: tuple[int, ...]) -> int:
    product = 1
    for axis in axes:
        product *= mesh[axis]
    return product
