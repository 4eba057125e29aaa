"""Time of one operator's kernel on one device, by the device's calibration; arrays in, arrays out, or plain numbers.

All sizes are local to the device. A time includes the kernel's fixed cost on the device; the time that the host needs
to launch it is `launch_s`: a stretch of small kernels takes the larger of the two sums (DESIGN section 4, point 2).
`kernel_error` states the error of each estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.kernel_file import kernel_calibration
from meshwright.costmodels.calibration.kernels import Fitted, KernelError, KernelKind, VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.curves.attention import (
    AttentionShape,
    DecodeCurve,
    PrefillCurve,
    decode_s,
    decodes_s,
    prefill_s,
    prefills_s,
)
from meshwright.costmodels.curves.gemm import Silicon, gemm_s, gemms_s
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.model.operators import Operator, OperatorKind, Weight
from meshwright.costmodels.units import DType

Floats = NDArray[np.float64]
Sizes = float | NDArray[np.float64] | NDArray[np.int64]
Seconds = float | NDArray[np.float64]
Found = TypeVar("Found")

STANDS_FOR: Mapping[DType, tuple[DType, ...]] = {
    DType.FP32: (DType.BF16, DType.FP16),
    DType.TF32: (DType.BF16, DType.FP16),
    DType.BF16: (DType.FP16,),
    DType.FP16: (DType.BF16,),
    DType.FP8: (DType.BF16, DType.FP16),
    DType.INT8: (DType.FP8, DType.BF16, DType.FP16),
    DType.FP4: (DType.FP8, DType.BF16),
    DType.INT4: (DType.FP8, DType.BF16, DType.FP16),
}
"""Formats whose curve stands for one that was not measured, the nearest first: same matrix units, another rate."""

STAND_IN_ERROR_FACTOR = 2.0
"""A curve used for another format states twice its error; bf16 and fp16, which run alike, state their own."""


def matmul_s(
    device: Device, dtype: DType, m: Sizes, n: Sizes, k: Sizes, *, batch: Sizes = 1, weight_bytes: float | None = None
) -> Seconds:
    """Seconds of ``batch`` products (m, k) x (k, n) of inputs in ``dtype``, outputs in 16 bits.

    Arrays broadcast together; plain numbers give a float. ``weight_bytes`` is the width of a weight that is stored narrower
    than it computes (weight-only quantisation). Raises ClusterError when the device lacks the format.
    """
    fitted, _ = _curve(kernel_calibration(device.calibration).gemm, dtype, device)
    silicon = Silicon(device.peak(dtype), device.memory_bytes_per_s, weight_bytes or dtype.size_bytes)
    if _plain(m, n, k, batch):
        return float(gemm_s(float(m), float(n), float(k), float(batch), fitted.curve, silicon))
    (rows, columns, inner, batches), shape = _columns(m, n, k, batch)
    return np.asarray(gemms_s(rows, columns, inner, batches, fitted.curve, silicon)).reshape(shape)


def attention_forward_s(
    device: Device,
    dtype: DType,
    *,
    flops: Sizes,
    q_tokens: Sizes,
    kv_tokens: Sizes,
    heads: Sizes,
    head_dim: int,
    batch: Sizes = 1,
    kv_heads: Sizes | None = None,
) -> Seconds:
    """Seconds of fused attention over ``q_tokens`` new tokens (training or prefill) of each of ``batch`` sequences.

    ``flops`` counts the pairs that the mask leaves (`costmodels.model.operators.forward_flops`), the whole batch together.
    Without ``kv_heads`` each query head has its own.
    """
    fitted, _ = _attention_curve(kernel_calibration(device.calibration).prefill, dtype, head_dim, device)
    sizes = (flops, q_tokens, kv_tokens, batch, heads, heads if kv_heads is None else kv_heads, head_dim)
    silicon = Silicon(device.peak(dtype), device.memory_bytes_per_s, dtype.size_bytes)
    if _plain(*sizes):
        return float(prefill_s(AttentionShape(*map(float, sizes)), fitted.curve, silicon))
    columns, shape = _columns(*sizes)
    return np.asarray(prefills_s(np.stack(columns, axis=1), fitted.curve, silicon)).reshape(shape)


def attention_backward_s(
    device: Device,
    dtype: DType,
    *,
    flops: Sizes,
    q_tokens: Sizes,
    kv_tokens: Sizes,
    heads: Sizes,
    head_dim: int,
    batch: Sizes = 1,
    kv_heads: Sizes | None = None,
) -> Seconds:
    """Seconds of the backward pass of `attention_forward_s`, ``flops`` being those of the forward pass."""
    forward = attention_forward_s(
        device, dtype, flops=flops, q_tokens=q_tokens, kv_tokens=kv_tokens, heads=heads, head_dim=head_dim, batch=batch,
        kv_heads=kv_heads,
    )  # fmt: skip
    return forward * kernel_calibration(device.calibration).attention_backward.curve


def decode_attention_s(
    device: Device,
    dtype: DType,
    *,
    batch: Sizes,
    kv_tokens: Sizes,
    kv_heads: Sizes,
    heads: Sizes,
    head_dim: int,
    cache_dtype: DType | None = None,
) -> Seconds:
    """Seconds of one new token of each of ``batch`` sequences over ``kv_tokens`` cached ones.

    ``dtype`` is the format of the computation, ``cache_dtype`` that of the cache (the same, unless given).
    """
    cache = dtype if cache_dtype is None else cache_dtype
    fitted, _ = _attention_curve(kernel_calibration(device.calibration).decode, cache, head_dim, device)
    flops = 4.0 * np.multiply(np.multiply(batch, kv_tokens), np.multiply(heads, head_dim))
    sizes = (flops, 1, kv_tokens, batch, heads, kv_heads, head_dim)
    silicon = Silicon(device.peak(dtype), device.memory_bytes_per_s, cache.size_bytes)
    if _plain(batch, kv_tokens, kv_heads, heads):
        return float(decode_s(AttentionShape(*map(float, sizes)), fitted.curve, silicon))
    columns, shape = _columns(*sizes)
    return np.asarray(decodes_s(np.stack(columns, axis=1), fitted.curve, silicon)).reshape(shape)


def memory_bound_s(device: Device, bytes_moved: Sizes, *, kernel: VectorKernel = VectorKernel.STREAM) -> Seconds:
    """Seconds of a kernel that reads and writes ``bytes_moved`` and computes little; moving nothing takes no time."""
    curve = kernel_calibration(device.calibration).memory_bound[kernel].curve
    bytes_per_s = device.memory_bytes_per_s
    if _plain(bytes_moved):
        return float(curve.seconds(float(bytes_moved), bytes_per_s=bytes_per_s)) if bytes_moved > 0 else 0.0
    moved = np.asarray(bytes_moved, np.float64)
    return np.where(moved > 0, curve.seconds(moved, bytes_per_s=bytes_per_s), 0.0)


def launch_s(device: Device) -> float:
    """Seconds that hosts of this device's nodes take to launch one kernel from eager PyTorch, its Python included."""
    return kernel_calibration(device.calibration).host_launch_s


def kernel_error(device: Device, dtype: DType, kind: KernelKind | VectorKernel, *, head_dim: int = 128) -> KernelError:
    """Relative error of an estimate of this kind on this device, as measured on held-out rows or as stated."""
    calibration = kernel_calibration(device.calibration)
    if isinstance(kind, VectorKernel):
        return calibration.memory_bound[kind].error
    if kind is KernelKind.GEMM:
        fitted, used = _curve(calibration.gemm, dtype, device)
        return _stand_in_error(fitted.error, dtype, used)
    if kind is KernelKind.ATTENTION_BACKWARD:
        return calibration.attention_backward.error
    if kind is KernelKind.PREFILL_ATTENTION:
        prefill, used = _attention_curve(calibration.prefill, dtype, head_dim, device)
        return _stand_in_error(prefill.error, dtype, used)
    decode, used = _attention_curve(calibration.decode, dtype, head_dim, device)
    return _stand_in_error(decode.error, dtype, used)


def _curve(curves: Mapping[DType, Found], dtype: DType, device: Device) -> tuple[Found, DType]:
    for candidate in (dtype, *STANDS_FOR[dtype]):
        if candidate in curves:
            return curves[candidate], candidate
    raise ClusterError(
        f"calibration {device.calibration!r} has no curve for this kind of kernel",
        given=dtype.value,
        allowed=", ".join(sorted(d.value for d in curves)) or "none was measured",
    )


Attention = TypeVar("Attention", PrefillCurve, DecodeCurve)


def _attention_curve(
    curves: Mapping[DType, Mapping[int, Fitted[Attention]]], dtype: DType, head_dim: int, device: Device
) -> tuple[Fitted[Attention], DType]:
    by_head_dim, used = _curve(curves, dtype, device)
    return _nearest_head_dim(by_head_dim, head_dim), used


def _nearest_head_dim(by_head_dim: Mapping[int, Found], head_dim: int) -> Found:
    """The curve of the measured head dimension nearest on a log scale, the larger of two equally near."""
    return by_head_dim[min(by_head_dim, key=lambda d: (abs(np.log2(d / head_dim)), -d))]


def _stand_in_error(error: KernelError, dtype: DType, used: DType) -> KernelError:
    if used is dtype or {used, dtype} == {DType.BF16, DType.FP16}:
        return error
    factor = STAND_IN_ERROR_FACTOR
    basis = f"curve of {used.value} stands for {dtype.value}; {error.basis}"
    return KernelError(error.median * factor, error.p95 * factor, basis)


def _plain(*sizes: Sizes) -> bool:
    return all(isinstance(size, int | float) or np.ndim(size) == 0 for size in sizes)


def _columns(*sizes: Sizes) -> tuple[list[Floats], tuple[int, ...]]:
    arrays = np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes))
    return [np.array(array, order="C").reshape(-1) for array in arrays], arrays[0].shape


# Kernel times in the steps of a long run: those of kernels timed alone, at the rates that the device sustains.

LOW_PRECISION = (DType.FP8, DType.INT8, DType.FP4, DType.INT4)


def sustained_matmul_s(device: Device, dtype: DType, m: int, n: int, k: int, *, batch: int = 1) -> float:
    """Seconds of ``batch`` products (m, k) x (k, n) among others like them."""
    rates = device.sustained
    rate = rates.low_precision_matrix if dtype in LOW_PRECISION else rates.matrix
    return float(matmul_s(device, dtype, m, n, k, batch=batch)) / rate


def sustained_memory_s(device: Device, bytes_moved: float, *, kernel: VectorKernel = VectorKernel.STREAM) -> float:
    """Seconds of a kernel that only moves memory."""
    return float(memory_bound_s(device, bytes_moved, kernel=kernel)) / device.sustained.memory


def sustained_launch_s(device: Device) -> float:
    """Seconds of one launch, the unit of host work (`costmodels.kernels.host_work`)."""
    return launch_s(device) / device.sustained.host


# The optimizer Muon: momentum of each matrix of the layers, orthogonalized by Newton-Schulz steps; AdamW for all else.
#
# Embedding, head and vectors are AdamW's (Jordan et al. 2024, "Muon: an optimizer for hidden
# layers"; Megatron-LM's --optimizer muon and DeepSpeed's Muon do the same).

NEWTON_SCHULZ_STEPS = 5
"""Steps of the iteration, in bf16 (Jordan et al. 2024; the default of Megatron-LM's --muon-num-ns-steps and of DeepSpeed)."""


@lru_cache(maxsize=4096)
def orthogonalization_s(device: Device, *, rows: int, columns: int, matrices: int = 1) -> float:
    """Seconds of orthogonalizing ``matrices`` of a size, one after another.

    Of X with the short side n before the long one, a step takes A = X X^T, A A and A X: 4 n^2 long + 2 n^3 FLOPs.
    """
    n, long = min(rows, columns), max(rows, columns)
    step_s = sum(float(matmul_s(device, DType.BF16, n, *sizes)) for sizes in ((n, long), (n, n), (long, n)))
    return matrices * NEWTON_SCHULZ_STEPS * step_s


def matrices_of(operator: Operator, dims: Mapping[str, int]) -> list[tuple[int, int, int]]:
    """(rows, columns, number) of the matrices that an operator's weights are: those of products, an expert's each by itself."""
    if operator.kind is not OperatorKind.MATMUL:
        return []
    contracted = set(operator.contracted_dims)
    matrices = (weight for weight in operator.weights if weight.tied_to is None and contracted <= set(weight.dims))
    return [_matrix(weight, operator, dims) for weight in matrices]


def _matrix(weight: Weight, operator: Operator, dims: Mapping[str, int]) -> tuple[int, int, int]:
    contracted, routed = set(operator.contracted_dims), set(operator.routed_dims)
    rows = math.prod(dims[dim] for dim in weight.dims if dim in contracted)
    number = math.prod(dims[dim] for dim in weight.dims if dim in routed)
    return rows, weight.elements(dims) // (rows * number), number
