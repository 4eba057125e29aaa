"""Sharing gradients, optimizer state and weights over the dp x cp group: what of it a step has to wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.cluster import GroupTopology
from costmodels.collectives import Collective, collective_s
from solver.block_problem import Criterion
from solver.request import TrainingWorkload

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StateSync:
    """Time of sharing gradients and weights over the dp x cp group, by distinct block.

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


def state_sync(
    zero_stage: int, parameters: FloatArray, costs: FloatArray, workload: TrainingWorkload, group: GroupTopology
) -> StateSync:
    """Communication of a ZeRO stage; ``parameters`` and ``costs`` are by distinct block, ``group`` is dp x cp.

    Stage 0 all-reduces gradients once a step; 1 reduce-scatters them and gathers the new weights; 2 reduce-scatters every
    micro-batch, since no device may hold whole gradients; 3 gathers weights for each pass as well.
    """
    nothing = np.zeros(len(parameters))
    if group.n == 1:
        return StateSync(nothing, nothing, nothing, nothing)
    gradients = parameters * workload.gradient_dtype.size_bytes
    weights = parameters * workload.precision.size_bytes
    forward_s = costs[:, Criterion.FORWARD_S]
    backward_s = costs[:, Criterion.TIME_S] - forward_s
    if zero_stage == 0:
        reduce_s = _seconds(Collective.ALL_REDUCE, gradients, group)
        return StateSync(nothing, _excess(reduce_s, backward_s), np.minimum(reduce_s, backward_s), nothing)
    reduce_s = _seconds(Collective.REDUCE_SCATTER, gradients, group)
    gather_s = _seconds(Collective.ALL_GATHER, weights, group)
    hidden_s = np.minimum(reduce_s, backward_s)
    if zero_stage <= 2:
        hidden_s = hidden_s + np.minimum(gather_s, forward_s)
    if zero_stage == 1:
        return StateSync(nothing, _excess(reduce_s, backward_s) + _excess(gather_s, forward_s), hidden_s, nothing)
    if zero_stage == 2:
        return StateSync(_excess(reduce_s, backward_s), _excess(gather_s, forward_s), hidden_s, gradients)
    each = _excess(gather_s, forward_s) + _excess(gather_s + reduce_s, backward_s)
    # The layer in use and the one being fetched are whole at the same time, and one layer's gradients.
    return StateSync(each, nothing, hidden_s, 2 * weights + gradients)


def _seconds(collective: Collective, message_bytes: FloatArray, group: GroupTopology) -> FloatArray:
    return np.asarray(collective_s(collective, message_bytes, group), np.float64)


def _excess(communication_s: FloatArray, compute_s: FloatArray) -> FloatArray:
    return np.maximum(0.0, communication_s - compute_s)
