"""Sharing gradients, optimizer state and weights over the ranks that hold them: what of it a step has to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import GroupTopology
from meshwright.costmodels.model.adapter import ADAPTER_DTYPE
from meshwright.costmodels.model.implementation import GradientReduction
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.mesh import HybridGroups
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.request import TrainingWorkload

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SharedParameters:
    """Parameters of each distinct block that the ranks of ``group`` hold alike: dp x cp ranks, for experts fewer.

    Where ZeRO shards within a part of dp x cp, ``group`` is that part, and ``within`` says who holds the same beside it.
    """

    parameters: FloatArray
    group: GroupTopology
    within: HybridGroups | None = None

    @property
    def everyone(self) -> GroupTopology:
        """All ranks that hold the parameters alike, in whatever groups they shard."""
        return self.group if self.within is None else self.within.everyone


@dataclass(frozen=True)
class StateSync:
    """Time of sharing gradients and weights, by distinct block.

    Buckets are layers: the bucket of one layer travels under the backward pass of the layer before it in the model (a gather
    under the forward pass of the one before), as far as that is long enough.

    exposed_microbatch_s   not hidden, each micro-batch (ZeRO 2 and 3)
    exposed_step_s         not hidden, once a step
    hidden_step_s          hidden once a step, unless the block is the first of its stage: nothing runs beside its bucket
    gathered_bytes         whole weights and gradients of ZeRO 2 and 3 while in use
    """

    exposed_microbatch_s: FloatArray
    exposed_step_s: FloatArray
    hidden_step_s: FloatArray
    gathered_bytes: FloatArray


def state_sync(zero_stage: int, shared: Sequence[SharedParameters], costs: FloatArray, workload: TrainingWorkload) -> StateSync:
    """Communication of a ZeRO stage; ``costs`` are by distinct block, as are the parameters of each group.

    Groups use the same links, so their times add up. Stage 0 all-reduces gradients once a step; 1 reduce-scatters them and
    gathers the new weights; 2 reduce-scatters every micro-batch, since no device may hold whole gradients; 3 gathers weights
    for each pass as well. Within groups, shards of gradients are all-reduced between the groups besides, once a step.
    """
    nothing = np.zeros(len(costs))
    shared = [share for share in shared if share.group.n > 1]
    if not shared:
        return StateSync(nothing, nothing, nothing, nothing)
    gradient_bytes, weight_bytes = workload.gradient_dtype.size_bytes, workload.precision.size_bytes
    parameters = np.sum([share.parameters for share in shared], axis=0)
    gradients, weights = parameters * gradient_bytes, parameters * weight_bytes
    forward_s = costs[:, Criterion.FORWARD_S]
    backward_s = costs[:, Criterion.TIME_S] - forward_s
    if zero_stage == 0:
        reduce_s = _seconds(Collective.ALL_REDUCE, shared, gradient_bytes)
        exposed_reduce_s = _exposed_s(reduce_s, backward_s, shared)
        return StateSync(nothing, exposed_reduce_s, reduce_s - exposed_reduce_s, nothing)
    reduce_s = _seconds(Collective.REDUCE_SCATTER, shared, gradient_bytes)
    gather_s = _seconds(Collective.ALL_GATHER, shared, weight_bytes)
    in_groups = any(share.within is not None for share in shared)
    between_s = _between_replicas_s(shared, gradient_bytes) if in_groups else nothing
    if zero_stage == 1:
        # Both levels travel once a step, one after the other (Megatron-LM's start_grad_sync).
        reduce_s, between_s = reduce_s + between_s, nothing
    exposed_reduce_s, exposed_gather_s = (
        _exposed_s(reduce_s, backward_s, shared),
        _exposed_s(gather_s, forward_s, shared),
    )
    exposed_between_s = _exposed_s(between_s, backward_s, shared) if in_groups else nothing
    hidden_s = reduce_s - exposed_reduce_s + between_s - exposed_between_s
    if zero_stage <= 2:
        hidden_s = hidden_s + gather_s - exposed_gather_s
    if zero_stage == 1:
        return StateSync(nothing, exposed_reduce_s + exposed_gather_s, hidden_s, nothing)
    if zero_stage == 2:
        return StateSync(exposed_reduce_s, exposed_gather_s + exposed_between_s, hidden_s, gradients)
    # Weights of the next layer are fetched ahead in each pass; gradients of the layer before leave under the backward pass.
    each = exposed_gather_s + _exposed_s(gather_s + reduce_s, backward_s, shared)
    # The layer in use and the one being fetched are whole at the same time, and one layer's gradients.
    return StateSync(each, exposed_between_s, hidden_s, 2 * weights + gradients)


def adapter_sync(
    zero_stage: int,
    shared: Sequence[SharedParameters],
    adapters: Sequence[SharedParameters],
    costs: FloatArray,
    workload: TrainingWorkload,
) -> StateSync:
    """Communication of ZeRO 0 and 3 beside frozen weights, ``shared``: only ``adapters`` have gradients, and frozen weights
    travel where they are sharded."""
    of_adapters = replace(workload, precision=ADAPTER_DTYPE, gradient_dtype=ADAPTER_DTYPE)
    shared, adapters = ([share for share in shares if share.group.n > 1] for shares in (shared, adapters))
    if zero_stage == 0 or not shared:
        return state_sync(0, adapters, costs, of_adapters)
    size, of_adapter = workload.precision.size_bytes, ADAPTER_DTYPE.size_bytes
    frozen, trained = (np.sum([share.parameters for share in shares], axis=0) for shares in (shared, adapters))
    forward_s = costs[:, Criterion.FORWARD_S]
    backward_s = costs[:, Criterion.TIME_S] - forward_s
    gather_s = _seconds(Collective.ALL_GATHER, shared, size) + _seconds(Collective.ALL_GATHER, adapters, of_adapter)
    reduce_s = _seconds(Collective.REDUCE_SCATTER, adapters, of_adapter)
    between_s = _between_replicas_s(adapters, of_adapter)
    exposed_between_s = _exposed_s(between_s, backward_s, adapters)
    each = _exposed_s(gather_s, forward_s, shared) + _exposed_s(gather_s + reduce_s, backward_s, shared)
    gathered = 2 * (frozen * size + trained * of_adapter) + trained * of_adapter
    return StateSync(each, exposed_between_s, between_s - exposed_between_s, np.asarray(gathered, np.float64))


def sync_after_backward(
    zero_stage: int,
    shared: Sequence[SharedParameters],
    workload: TrainingWorkload,
    *,
    reduction: GradientReduction,
    mean_stage: Callable[[FloatArray], float],
) -> StateSync:
    """Communication of ZeRO 0 and 1 where gradients travel after the backward pass in one piece, and nothing hides it.

    A block's part of the piece's time is its part of the bytes. The rate is that of a mean stage's piece, whose size
    ``mean_stage`` tells from what each distinct block has. In fp32, gradients are all-reduced whatever the optimizer shards.
    """
    in_fp32 = reduction is GradientReduction.IN_FP32_AFTER_BACKWARD
    gradient_bytes = DType.FP32.size_bytes if in_fp32 else workload.gradient_dtype.size_bytes
    nothing = np.zeros(len(shared[0].parameters)) if shared else np.zeros(0)
    exposed_s = nothing
    for share in shared:
        piece = mean_stage(share.parameters)
        if share.group.n == 1 or piece <= 0.0:
            continue
        gradients = piece * gradient_bytes
        if in_fp32 or zero_stage == 0:
            sends = [(Collective.ALL_REDUCE, gradients, share.everyone)]
        else:
            sends = [(Collective.REDUCE_SCATTER, gradients, share.group)]
            if share.within is not None:
                sends.append((Collective.ALL_REDUCE, gradients / share.group.n, share.within.replicas))
        if zero_stage > 0:
            sends.append((Collective.ALL_GATHER, piece * workload.precision.size_bytes, share.group))
        piece_s = sum(float(collective_s(kind, size, group)) for kind, size, group in sends)
        exposed_s = exposed_s + share.parameters / piece * piece_s
    return StateSync(nothing, exposed_s, nothing, nothing)


def _seconds(collective: Collective, shared: Sequence[SharedParameters], bytes_each: float) -> FloatArray:
    times = [np.asarray(collective_s(collective, share.parameters * bytes_each, share.group)) for share in shared]
    return np.asarray(np.sum(times, axis=0), np.float64)


def _between_replicas_s(shared: Sequence[SharedParameters], bytes_each: float) -> FloatArray:
    """All-reduce of gradient shards over groups that hold the same, once a step (MiCS, Zhang et al., VLDB'22, section 3.4)."""
    times = [np.zeros(len(share.parameters)) for share in shared]
    for time_s, share in zip(times, shared, strict=True):
        if share.within is not None:
            sharded = share.parameters * bytes_each / share.group.n
            time_s += np.asarray(collective_s(Collective.ALL_REDUCE, sharded, share.within.replicas), np.float64)
    return np.asarray(np.sum(times, axis=0), np.float64)


def _exposed_s(communication_s: FloatArray, compute_s: FloatArray, shared: Sequence[SharedParameters]) -> FloatArray:
    """Return the seconds that communication in the shadow of computation adds to it: its excess, and what it slows."""
    stream = Stream.INTER_NODE if any(share.everyone.spans_nodes for share in shared) else Stream.INTRA_NODE
    return exposed_s(communication_s, compute_s, stream, MEASURED_INTERFERENCE)
