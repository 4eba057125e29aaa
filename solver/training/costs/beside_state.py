"""Bytes that an implementation keeps on a device all the time beside weights, gradients and optimizer state."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.memory.training_state import (
    deepspeed_bf16_bytes,
    deepspeed_copied_gradient_bytes,
    deepspeed_zero_bytes,
    deferred_head_bytes,
)
from meshwright.costmodels.model.dims import HIDDEN, VOCAB
from meshwright.costmodels.model.implementation import HeadGradients, Implementation
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.stage_table import FloatArray
from meshwright.solver.training.space.candidates import Candidate


def bytes_beside_state(
    request: TrainingRequest, candidate: Candidate, implementation: Implementation, parameters: FloatArray
) -> FloatArray:
    """Bytes by layer; ``parameters`` are those of each layer on its tp rank.

    Buffers of DeepSpeed's ZeRO 1 and 2 are those of a mean stage, by each layer's share of the parameters; copies of its
    largest gradients, those of the vocabulary, count to the first and last layer. Deferred weight gradients of the head count
    to the last layer.
    """
    workload, mesh, dims = request.workload, candidate.mesh, request.model.dims
    held = np.zeros(len(parameters))
    if candidate.zero_stage in implementation.state_buffers.stages:
        held += _deepspeed_bytes(request, candidate, parameters)
    if implementation.head_gradients is HeadGradients.DEFERRED and HIDDEN in dims and VOCAB in dims:
        held[-1] += deferred_head_bytes(
            tokens=candidate.microbatch * workload.seq_len // mesh.cp,
            hidden=dims[HIDDEN],
            vocab=-(-dims[VOCAB] // mesh.tp),
            n_microbatches=candidate.n_microbatches,
            dtype=workload.precision,
        )
    return held


def _deepspeed_bytes(request: TrainingRequest, candidate: Candidate, parameters: FloatArray) -> FloatArray:
    workload, mesh, dims = request.workload, candidate.mesh, request.model.dims
    mean_stage = float(parameters.sum()) / mesh.pp
    shards = candidate.shard_ranks or mesh.dp * mesh.cp
    of_vocabulary = dims[HIDDEN] * -(-dims[VOCAB] // mesh.tp) if HIDDEN in dims and VOCAB in dims else 0
    if (workload.precision, workload.gradient_dtype, candidate.zero_stage) == (DType.BF16, DType.FP32, 1):
        of_stage = deepspeed_bf16_bytes(mean_stage)
        copied = float(of_vocabulary * DType.FP32.size_bytes)
    else:
        of_stage = deepspeed_zero_bytes(mean_stage, gradient_dtype=workload.gradient_dtype, shards=shards)
        copied = deepspeed_copied_gradient_bytes(of_vocabulary, own_elements=mean_stage / shards)
    held = parameters / mean_stage * of_stage
    held[0] += copied
    if mesh.pp > 1:
        held[-1] += copied
    return np.asarray(held)
