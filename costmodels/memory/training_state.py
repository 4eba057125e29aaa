"""Training state and fixed overheads of a device's memory, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.cluster.cluster import NCCL_COMMUNICATOR_BYTES
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.implementation import CONTEXT_BYTES
from meshwright.costmodels.units import DType


class Optimizer(StrEnum):
    """Optimizers by the fp32 values they keep for a parameter (the master copy of 16-bit weights not counted)."""

    ADAMW = "adamw"
    SGD_MOMENTUM = "sgd_momentum"
    MUON = "muon"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_BF16 = "adamw_bf16"


# fp32 values a parameter: Adam's two moments; one momentum for SGD and Muon (multi-GPU lecture, "optimizer bytes"). Moments of
# one byte each take half a value together; their scales, one for 2048 of them, are left out (Dettmers et al. 2022, section 2).
# Moments in bf16 take one (DeepSeek-V3 report, section 3.3.3: moments in bf16, master weights and gradients in fp32).
_MOMENTS = {
    Optimizer.ADAMW: 2.0,
    Optimizer.SGD_MOMENTUM: 1.0,
    Optimizer.MUON: 1.0,
    Optimizer.ADAMW_8BIT: 0.5,
    Optimizer.ADAMW_BF16: 1.0,
}

MAX_ZERO_STAGE = 3


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes a device holds for each parameter that its tp and pp rank owns."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Weights, gradients and optimizer state together."""
        return self.weights + self.gradients + self.optimizer


def state_bytes_per_parameter(
    *, precision: DType, gradient_dtype: DType, optimizer: Optimizer, zero_stage: int, shards: int
) -> StateBytes:
    """Bytes a parameter takes on one device, by kind.

    ZeRO (Rajbhandari et al., SC'20) divides the optimizer state by ``shards`` = dp x cp at stage 1, the gradients too at
    stage 2, the weights too at stage 3. With 16-bit weights the optimizer keeps an fp32 master copy:
    bf16 2 + gradient 2 + master 4 + Adam 4 + 4 = 16 bytes (multi-GPU lecture); fp32 gradients make it 18.
    """
    if not 0 <= zero_stage <= MAX_ZERO_STAGE:
        raise WorkloadError("unknown ZeRO stage", given=zero_stage, allowed="0, 1, 2, 3")
    master = 0 if precision is DType.FP32 else 1
    optimizer_bytes = DType.FP32.size_bytes * (master + _MOMENTS[optimizer])
    return StateBytes(
        weights=precision.size_bytes / (shards if zero_stage >= 3 else 1),
        gradients=gradient_dtype.size_bytes / (shards if zero_stage >= 2 else 1),
        optimizer=optimizer_bytes / (shards if zero_stage >= 1 else 1),
    )


def optimizer_traffic_bytes(*, precision: DType, gradient_dtype: DType, optimizer: Optimizer) -> float:
    """Bytes an optimizer step reads and writes for each parameter it owns: gradient in, weight out, states in and out."""
    master = 0 if precision is DType.FP32 else 1
    states = DType.FP32.size_bytes * (master + _MOMENTS[optimizer])
    return gradient_dtype.size_bytes + precision.size_bytes + 2 * states


FP64_BYTES = 8.0
DEEPSPEED_BUCKET_ELEMENTS = 500_000_000
"""Default of reduce_bucket_size and of allgather_bucket_size (DeepSpeed's documentation of its configuration)."""


def deferred_head_bytes(*, tokens: int, hidden: int, vocab: int, n_microbatches: int, dtype: DType) -> float:
    """Return the bytes that a head keeps of the micro-batches whose weight gradients wait for the pipeline's end: its input and
    the gradient of its logits, ``vocab`` columns on a rank (Megatron-LM's --defer-embedding-wgrad-compute, no limit set)."""
    return (n_microbatches - 1) * tokens * (hidden + vocab) * dtype.size_bytes


def deepspeed_zero_bytes(parameters: float, *, gradient_dtype: DType, shards: int) -> float:
    """Return the bytes that DeepSpeed's ZeRO 1 and 2 hold beside weights, gradients and optimizer state.

    The fp32 gradients of a rank's own shard (DeepSpeed's memory estimators count 16 bytes a parameter of a shard, not 12), and
    the buffers in which gradients are reduced and weights gathered.
    """
    bucket = min(parameters, DEEPSPEED_BUCKET_ELEMENTS) * gradient_dtype.size_bytes
    return parameters * DType.FP32.size_bytes / shards + 2 * bucket


def deepspeed_bf16_bytes(parameters: float) -> float:
    """Return the bytes that DeepSpeed's optimizer for bf16 weights with fp32 gradients holds beside these and its state.

    It sets 16-bit gradients to zero after each micro-batch and keeps them, and sums fp32 ones over ranks through a flat bucket
    (clear_lp_grads of runtime/bf16_optimizer.py and buffered_allreduce_fallback of runtime/engine.py, releases 0.7 to 0.19).
    """
    return parameters * DType.BF16.size_bytes + min(parameters, DEEPSPEED_BUCKET_ELEMENTS) * DType.FP32.size_bytes


def deepspeed_copied_gradient_bytes(elements: float, *, own_elements: float) -> float:
    """Return the bytes of the fp64 copy that DeepSpeed's ZeRO makes of the gradient whose norm it takes: of a tensor of so many
    elements, as far as it lies in a rank's shard (g.data.double() in get_grad_norm_direct of runtime/zero/stage_1_and_2.py,
    releases 0.5 to 0.19). No activation is as large, so the allocator finds no freed block for it."""
    return min(elements, own_elements) * FP64_BYTES


def framework_overhead_bytes(
    *, communicators: int, communicator_bytes: int = NCCL_COMMUNICATOR_BYTES, context_bytes: int = CONTEXT_BYTES
) -> float:
    """Memory outside the tensor allocator: device context, and the buffers of each communicator."""
    return float(context_bytes + communicators * communicator_bytes)
