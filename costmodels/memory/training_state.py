"""Training state and fixed overheads of a device's memory, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import NCCL_COMMUNICATOR_BYTES, Device
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.implementation import CONTEXT_BYTES
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import STRICT_RECORD, DType, Fraction


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


# State and saved activations in host memory: what travels over a device's link to its host, and what the host computes.
#
# Optimizer states on the host are updated there: gradients go down, the host's cores run the
# optimizer, new weights come up, all piece by piece at once (ZeRO-Offload, Ren et al., ATC'21,
# sections 4 and 5), so the slowest of the three decides. Weights come up for the forward and again
# for the backward pass of their layer, gradients go down under its backward pass (ZeRO-Infinity,
# Rajbhandari et al., SC'21, section 5), from the drives of the node where they lie there. Saved
# activations leave under the forward pass and come back under the backward pass.

FloatArray = npt.NDArray[np.float64]

HOST_ADAM_PARAMETERS_PER_S = 10e9 / 2.57
"""Parameters that the cores of a host, which its devices share, update in a second: 10 billion in 2.57 s on two Xeon Platinum
8168 (ZeRO-Offload, Table 4, CPU-Adam)."""


class Tier(StrEnum):
    """Where state lies that is not on the device: in the memory of the host, or on the drives of the node."""

    HOST = "host"
    NVME = "nvme"


@dataclass(frozen=True, slots=True)
class Offload:
    """Shares of what a device would hold that lie in its host's memory instead; those of optimizer states and weights may
    lie on the drives of its node."""

    __pydantic_config__ = STRICT_RECORD

    optimizer: Fraction = 0.0
    activations: Fraction = 0.0
    weights: Fraction = 0.0
    gradients: Fraction = 0.0
    optimizer_to: Tier = Tier.HOST
    weights_to: Tier = Tier.HOST

    @property
    def on_drives(self) -> bool:
        """True if anything lies on drives."""
        return Tier.NVME in (self.optimizer_to, self.weights_to)

    @property
    def is_nothing(self) -> bool:
        """True if all stays on the device."""
        return self.optimizer == self.activations == self.weights == self.gradients == 0.0


NOTHING_OFFLOADED = Offload()


def host_update_s(
    parameters: FloatArray, offload: Offload, device: Device, *, devices_per_host: int, gradient_dtype: DType, precision: DType
) -> FloatArray:
    """Seconds until the host has updated its share of the parameters of each of its devices at once, beginning and end of the
    pipe left out.

    Of parameters whose states, gradients or weights lie on the host, the same come first: gradients go down where states are
    and they are not, up where it is the other way round; new weights likewise.
    """
    states, weights, gradients = offload.optimizer, offload.weights, offload.gradients
    weight_bytes, gradient_bytes = precision.size_bytes, gradient_dtype.size_bytes
    down = max(0.0, states - gradients) * gradient_bytes + max(0.0, weights - states) * weight_bytes
    up = max(0.0, states - weights) * weight_bytes + max(0.0, gradients - states) * gradient_bytes
    link_s = parameters * max(down, up) / device.host_bytes_per_s
    return np.maximum(link_s, states * parameters * devices_per_host / HOST_ADAM_PARAMETERS_PER_S)


def exposed_moves_s(
    up_bytes: FloatArray, down_bytes: FloatArray, device: Device, *, pass_s: FloatArray, read_s: FloatArray | float = 0.0
) -> FloatArray:
    """Seconds by which copies from and to the host, each direction by itself, outlast the pass that they run under; drives take
    ``read_s`` for what comes from there."""
    moves_s = np.maximum(np.maximum(up_bytes, down_bytes) / device.host_bytes_per_s, read_s)
    return np.maximum(exposed_s(moves_s, pass_s, Stream.HOST_COPY, MEASURED_INTERFERENCE), 0.0)
