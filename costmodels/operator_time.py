"""Time of one operator on one device, forward and backward, from its local sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.cluster import Device
from costmodels.compute import attention_backward_s, attention_forward_s, matmul_s, memory_bound_s
from costmodels.kernel_calibration import VectorKernel
from costmodels.operators import BATCH, SEQ, Operator, OperatorKind, forward_flops, matmul_shape
from costmodels.units import DType


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of the forward pass and of the backward pass (input and weight gradients together)."""

    forward_s: float
    backward_s: float


def operator_time(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, cp: int = 1) -> OperatorTime:
    """Time under local sizes; ``seq`` is a rank's share of the sequence under context parallelism of degree ``cp``."""
    if operator.kind is OperatorKind.MATMUL:
        m, n, k = matmul_shape(operator, sizes)
        forward = matmul_s(device, dtype, m, n, k)
        # Input gradient dY W^T is (m, k, n); weight gradient X^T dY is (k, n, m).
        backward = matmul_s(device, dtype, m, k, n) + matmul_s(device, dtype, k, n, m)
        return OperatorTime(float(forward), float(backward))
    if operator.kind is OperatorKind.ATTENTION:
        return _attention_time(operator, sizes, device=device, dtype=dtype, cp=cp)
    forward_bytes, backward_bytes = _bytes_moved(operator, sizes, dtype)
    kernel = _vector_kernel(operator)
    return OperatorTime(
        float(memory_bound_s(device, forward_bytes, kernel=kernel)),
        float(memory_bound_s(device, backward_bytes, kernel=kernel)),
    )


def _attention_time(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, cp: int) -> OperatorTime:
    """Flash attention; in a ring (cp > 1) one kernel a chunk of keys, and a merge of the partial outputs after each.

    Zig-zag chunks balance the causal mask, so each step has 1/cp of the rank's pairs. A merge reads the running output
    and the new one, and writes the running one, all in fp32 (Liu et al. 2023, Ring Attention, algorithm 1).
    """
    query, key, _ = operator.inputs
    head_dim = sizes[query.dims[-1]]
    tokens = sizes[BATCH] * sizes[SEQ]
    forward, backward = (
        cp
        * float(
            pass_s(
                device,
                dtype,
                flops=forward_flops(operator, sizes, sizes[SEQ] * cp) / cp,
                q_tokens=sizes[SEQ],
                kv_tokens=sizes[SEQ],
                batch=sizes[BATCH],
                heads=query.elements(sizes) // (tokens * head_dim),
                kv_heads=key.elements(sizes) // (tokens * sizes[key.dims[-1]]),
                head_dim=head_dim,
            )
        )
        for pass_s in (attention_forward_s, attention_backward_s)
    )
    if cp > 1:
        outputs = sum(tensor.elements(sizes) for tensor in operator.outputs)
        merge = float(memory_bound_s(device, 3 * outputs * DType.FP32.size_bytes))
        # Backward adds up the query gradient the same way.
        forward, backward = forward + (cp - 1) * merge, backward + (cp - 1) * merge
    return OperatorTime(forward, backward)


def _vector_kernel(operator: Operator) -> VectorKernel:
    """The kind of memory-bound kernel that runs a vector operator; one FLOP an element is an addition."""
    if operator.kind in (OperatorKind.NORM, OperatorKind.LOSS):
        return VectorKernel.NORM
    if operator.kind is OperatorKind.EMBEDDING:
        return VectorKernel.GATHER
    return VectorKernel.ACTIVATION if operator.flops_per_element > 1 else VectorKernel.STREAM


def _bytes_moved(operator: Operator, sizes: Mapping[str, int], dtype: DType) -> tuple[float, float]:
    """Bytes read and written by a vector operator, forward and backward."""
    inputs = sum(tensor.elements(sizes) for tensor in operator.inputs)
    outputs = sum(tensor.elements(sizes) for tensor in operator.outputs)
    if operator.kind is OperatorKind.LOSS:
        # Logits are read in 16 bits, kept in fp32 for the softmax, and their gradient written in 16 bits.
        logits = operator.inputs[0].elements(sizes)
        return logits * (dtype.size_bytes + 2 * DType.FP32.size_bytes), logits * (DType.FP32.size_bytes + dtype.size_bytes)
    if operator.kind is OperatorKind.EMBEDDING:
        # Rows are gathered and written; backward reads the output gradient and adds it into the table's rows.
        return 2 * outputs * dtype.size_bytes, 3 * outputs * dtype.size_bytes
    # Backward reads the inputs and the output gradient, and writes the input gradients.
    return (inputs + outputs) * dtype.size_bytes, (2 * inputs + outputs) * dtype.size_bytes
