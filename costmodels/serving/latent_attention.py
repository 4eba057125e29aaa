"""Multi-head latent attention as engines serve it: a compressed cache, and decoding with the expansions absorbed.

The cache keeps one latent and one rotary key a token and layer (DeepSeek-V2, section 2.1), the same on every tp rank. In
decoding queries are carried into the latent space and results out of it (by the weights that expand latents in prefill, with
the same FLOPs a token), so that all heads read the one cache: attention of one key/value head with keys of rank + rotary part
and values of the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.kernels import KernelError
from meshwright.costmodels.calibration.serving import serving_calibration
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import Silicon
from meshwright.costmodels.model.dims import HEADS
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType

FloatArray = npt.NDArray[np.float64]

LATENT_CACHE_HEAD_DIM = 288.0
"""Half of 576 numbers a token: curves of decode attention count a key and a value of this size."""


@dataclass(frozen=True, slots=True)
class LatentCache:
    """Numbers of one token and layer: the latent (keys and values of all heads) and the rotary key."""

    rank: int
    rotary: int

    @property
    def elements(self) -> int:
        """Numbers that the cache holds for a token in a layer."""
        return self.rank + self.rotary


def latent_expansion(operators: Sequence[Operator]) -> Operator | None:
    """The product that makes keys and values of all heads of a latent; None where keys and values are cached themselves.

    It contracts one dim whole and gives two tensors with heads.
    """
    for operator in operators:
        expands = len(operator.outputs) == 2 and all(HEADS in tensor.dims for tensor in operator.outputs)
        if operator.kind is OperatorKind.MATMUL and expands and len(operator.contracted_dims) == 1:
            return operator
    return None


def latent_cache(operators: Sequence[Operator], dims: Mapping[str, int]) -> LatentCache | None:
    """The cache of a block with latent attention: the rotary key is what joins the expanded keys without having heads."""
    expansion = latent_expansion(operators)
    if expansion is None:
        return None
    keys = expansion.outputs[0].name
    rotary = [
        tensor
        for joining in operators
        if keys in {tensor.name for tensor in joining.inputs}
        for tensor in joining.inputs
        if HEADS not in tensor.dims
    ]
    return LatentCache(dims[expansion.contracted_dims[0]], sum(dims[tensor.dims[-1]] for tensor in rotary))


def latent_decode_s(
    device: Device, cache_dtype: DType, cache: LatentCache, *, batch: FloatArray, kv_tokens: FloatArray, heads: int
) -> FloatArray:
    """Seconds of one new token of each of ``batch`` sequences over ``kv_tokens`` cached latents, ``heads`` on the rank."""
    calibration = serving_calibration(device.calibration)
    fitted = calibration.latent_decode.get(cache_dtype.value) or calibration.latent_decode[DType.BF16.value]
    silicon = Silicon(device.peak(DType.BF16), device.memory_bytes_per_s, cache_dtype.size_bytes)
    batches, tokens = np.broadcast_arrays(batch, kv_tokens)
    batches, tokens = batches.ravel().astype(np.float64), tokens.ravel().astype(np.float64)
    ones = np.ones_like(batches)
    # Scores over latent and rotary part, values over the latent.
    flops = 2.0 * batches * heads * tokens * (cache.elements + cache.rank)
    rows = np.stack([flops, ones, tokens, batches, heads * ones, ones, cache.elements / 2.0 * ones], axis=1)
    shape = np.broadcast_shapes(np.shape(batch), np.shape(kv_tokens))
    return np.asarray(decodes_s(rows, fitted.curve, silicon)).reshape(shape)


def latent_prefill_s(
    device: Device,
    cache_dtype: DType,
    *,
    flops: FloatArray,
    q_tokens: FloatArray,
    kv_tokens: FloatArray,
    heads: int,
    width: float,
) -> FloatArray:
    """Seconds of a chunk of a prompt, its keys and values expanded, ``heads`` on the rank; ``width`` is the mean size of a key
    and a value, and the cache's format decides which kernel runs."""
    calibration = serving_calibration(device.calibration)
    fitted = calibration.latent_prefill.get(cache_dtype.value) or calibration.latent_prefill[DType.BF16.value]
    silicon = Silicon(device.peak(DType.BF16), device.memory_bytes_per_s, DType.BF16.size_bytes)
    work, queries, keys = np.broadcast_arrays(flops, q_tokens, kv_tokens)
    ones = np.ones(work.size)
    columns = (work.ravel(), queries.ravel(), keys.ravel(), ones, heads * ones, heads * ones, width * ones)
    rows = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
    return np.asarray(prefills_s(rows, fitted.curve, silicon)).reshape(work.shape)


def latent_prefill_error(device: Device, cache_dtype: DType) -> KernelError:
    """Error of `latent_prefill_s` on held-out rows, or as stated for a device that was not measured."""
    calibration = serving_calibration(device.calibration)
    return (calibration.latent_prefill.get(cache_dtype.value) or calibration.latent_prefill[DType.BF16.value]).error


def latent_decode_error(device: Device, cache_dtype: DType) -> KernelError:
    """Error of `latent_decode_s` on held-out rows, or as stated for a device that was not measured."""
    calibration = serving_calibration(device.calibration)
    return (calibration.latent_decode.get(cache_dtype.value) or calibration.latent_decode[DType.BF16.value]).error
