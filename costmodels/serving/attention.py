"""Attention in a step of a serving engine: decoding over caches, prompt chunks after their prefix; masks, windows and latents.

Decoding with ``kvp`` ranks along the sequence follows Helix (section 2.1) as vLLM's decode context parallelism runs it: queries
of all heads of a tp rank are gathered, every rank attends to its share of the tokens, partial outputs and their log-sum-exp go
around in one all-to-all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.kernels import KernelError
from meshwright.costmodels.calibration.serving import serving_calibration
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import Silicon
from meshwright.costmodels.kernels.compute import attention_forward_s, decode_attention_s
from meshwright.costmodels.model.dims import BATCH, HEADS, SEQ
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, matmul_shape
from meshwright.costmodels.model.split_dims import cache_sizes
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.serving.operators import ServedOn, collective_seconds, product_s
from meshwright.costmodels.units import DType

# Multi-head latent attention as engines serve it: a compressed cache, and decoding with the expansions absorbed.
#
# The cache keeps one latent and one rotary key a token and layer (DeepSeek-V2, section 2.1), the
# same on every tp rank. In decoding queries are carried into the latent space and results out of it
# (by the weights that expand latents in prefill, with the same FLOPs a token), so that all heads
# read the one cache: attention of one key/value head with keys of rank + rotary part and values of
# the rank.

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


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of attention on one rank."""

    query: int
    kv: int
    key_dim: int
    value_dim: int


def decode_s(
    operator: Operator, on: ServedOn, *, latent: LatentCache | None, sequences: FloatArray, kv_tokens: FloatArray
) -> FloatArray:
    """[sequence, cache length] time of ``on.query_tokens`` of each sequence over its cache."""
    heads = _heads(operator, cache_sizes(operator, {**on.dims, BATCH: 1, SEQ: 1}, on.ranks.grid))
    # Tokens of a sequence read its cache together: its kernel sees as many times the query heads (FlashAttention, packed GQA).
    heads = replace(heads, query=heads.query * on.query_tokens)
    kvp = on.ranks.grid.kvp
    # Round-robin append spreads every cache evenly (Helix, section 2.3).
    held = np.maximum(1.0, _keys_seen(operator, kv_tokens) / kvp)
    batch = sequences[:, None]
    if latent is not None:
        seconds = latent_decode_s(on.device, on.precision.kv, latent, batch=batch, kv_tokens=held[None, :], heads=heads.query)
    else:
        seconds = np.asarray(
            decode_attention_s(
                on.device,
                on.precision.activations,
                cache_dtype=on.precision.kv,
                batch=batch,
                kv_tokens=held[None, :],
                heads=heads.query,
                kv_heads=heads.kv,
                head_dim=heads.key_dim,
            ),
            dtype=np.float64,
        )
    if kvp == 1:
        return seconds
    query_dim, value_dim = (heads.key_dim, heads.value_dim) if latent is None else (latent.elements, latent.rank)
    width = on.precision.activations.size_bytes
    gathered = sequences * heads.query * query_dim * width
    # Partial outputs, and a log-sum-exp in fp32 for each head.
    exchanged = sequences * heads.query * (value_dim * width + DType.FP32.size_bytes)
    moved = collective_seconds(Collective.ALL_GATHER, gathered, on.ranks.kv)
    moved = moved + collective_seconds(Collective.ALL_TO_ALL, exchanged, on.ranks.kv)
    return np.asarray(seconds + moved[:, None])


def prefill_s_per_pair(
    operator: Operator,
    on: ServedOn,
    *,
    expansion: Operator | None,
    query: FloatArray,
    prefix: FloatArray,
) -> tuple[FloatArray, float]:
    """[query, prefix] time per query-key pair of a causal chunk, its fixed part taken out, and that fixed part.

    Of cp ranks each takes as many queries and pairs: two pieces of a chunk, one from each end (SGLang, zigzag strategy).

    ``expansion`` is the product that makes keys and values of latents: it runs again over the prefix for every chunk.
    """
    heads = _heads(operator, on.local(operator))
    rows, before, cp = query[:, None], prefix[None, :], on.sharing
    pairs = rows * (before + (rows + 1.0) / 2.0)
    flops = _pairs_seen(operator, rows, before) * heads.query * 2.0 * (heads.key_dim + heads.value_dim) / cp
    dtype = on.precision.activations

    def kernel_s(flops: float | FloatArray, q_tokens: float | FloatArray, kv_tokens: float | FloatArray) -> FloatArray:
        if expansion is not None:
            return latent_prefill_s(
                on.device,
                on.precision.kv,
                flops=np.asarray(flops),
                q_tokens=np.asarray(q_tokens),
                kv_tokens=np.asarray(kv_tokens),
                heads=heads.query,
                width=(heads.key_dim + heads.value_dim) / 2.0,
            )
        time = attention_forward_s(
            on.device,
            dtype,
            flops=flops,
            q_tokens=q_tokens,
            kv_tokens=kv_tokens,
            heads=heads.query,
            kv_heads=heads.kv,
            head_dim=heads.key_dim,
        )
        return np.asarray(time, dtype=np.float64)

    fixed_s = kernel_s(2.0 * heads.query * (heads.key_dim + heads.value_dim), 1.0, 1.0)
    kernels_s = np.maximum(0.0, kernel_s(flops, on.own_tokens(rows), before + rows) - fixed_s)
    work_s = kernels_s + _prefix_s(operator, on, expansion, prefix)[None, :]
    return work_s / pairs, float(fixed_s)


def gathered_context_s(operator: Operator, on: ServedOn, *, latent: LatentCache | None, tokens: FloatArray) -> FloatArray:
    """Gathering keys and values, or latents, of a step's tokens from the cp ranks that computed them (SGLang, prefill context
    parallelism: all-gather on the KV cache); nothing without cp."""
    if on.sharing == 1:
        return np.zeros_like(tokens)
    elements = cached_elements(operator, on, latent)
    return collective_seconds(Collective.ALL_GATHER, tokens * elements * on.precision.activations.size_bytes, on.ranks.context)


def cached_elements(operator: Operator, on: ServedOn, latent: LatentCache | None) -> int:
    """Numbers of a token that attention reads on a rank whose cache is not split along the sequence."""
    if latent is not None:
        return latent.elements
    local = cache_sizes(operator, {**on.dims, BATCH: 1, SEQ: 1}, on.ranks.grid)
    return sum(tensor.elements(local) for tensor in operator.inputs[1:])


def _prefix_s(operator: Operator, on: ServedOn, expansion: Operator | None, prefix: FloatArray) -> FloatArray:
    """Return the seconds that a chunk needs before it can attend to its prefix: to gather it from the kvp ranks, and to expand
    latents."""
    seconds = np.zeros_like(prefix)
    if on.ranks.grid.kvp > 1:
        local = cache_sizes(operator, {**on.dims, BATCH: 1, SEQ: 1}, on.ranks.grid)
        elements = sum(tensor.elements(local) for tensor in operator.inputs[1:])
        if expansion is not None:
            elements = expansion.inputs[0].elements(local)
        gathered = prefix * elements * on.precision.kv.size_bytes
        seconds = seconds + collective_seconds(Collective.ALL_GATHER, gathered, on.ranks.kv)
    if expansion is not None:
        m, n, k = matmul_shape(expansion, on.local(expansion))
        seconds = seconds + np.where(prefix > 0, product_s(expansion, on, np.maximum(1.0, prefix * m), n, k), 0.0)
    return seconds


def _keys_seen(operator: Operator, kv_tokens: FloatArray) -> FloatArray:
    """Keys that a new token reads: all, those of its window, or at most those of its chunk."""
    return kv_tokens if operator.window is None else np.minimum(kv_tokens, float(operator.window))


def _pairs_seen(operator: Operator, query: FloatArray, prefix: FloatArray) -> FloatArray:
    """Query-key pairs that the kernel computes: a causal chunk after its prefix, inside the window or the mask's chunks."""
    pairs = query * (prefix + (query + 1.0) / 2.0)
    if operator.window is None:
        return np.asarray(pairs)
    if operator.mask is AttentionMask.CHUNKED:
        return np.asarray(_chunked_pairs(prefix + query, operator.window) - _chunked_pairs(prefix, operator.window))
    return np.asarray(np.minimum(pairs, query * operator.window))


def _chunked_pairs(tokens: FloatArray, chunk: int) -> FloatArray:
    """Pairs of the first tokens of a sequence whose attention stays in aligned chunks."""
    whole, rest = np.divmod(tokens, float(chunk))
    return np.asarray(whole * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0)


def _heads(operator: Operator, local: dict[str, int]) -> Heads:
    query, key, value = operator.inputs
    key_dim = local[query.dims[-1]]
    return Heads(query.elements(local) // key_dim, key.elements(local) // local[key.dims[-1]], key_dim, local[value.dims[-1]])
