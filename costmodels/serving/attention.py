"""Attention in a step of a serving engine: decoding over caches, prompt chunks after their prefix; masks, windows and latents.

Decoding with ``kvp`` ranks along the sequence follows Helix (section 2.1) as vLLM's decode context parallelism runs it: queries
of all heads of a tp rank are gathered, every rank attends to its share of the tokens, partial outputs and their log-sum-exp go
around in one all-to-all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.kernels.compute import attention_forward_s, decode_attention_s
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import AttentionMask, Operator, matmul_shape
from meshwright.costmodels.model.split_dims import cache_sizes
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.serving.latent_attention import LatentCache, latent_decode_s, latent_prefill_s
from meshwright.costmodels.serving.operators import ServedOn, collective_seconds, product_s
from meshwright.costmodels.units import DType

FloatArray = npt.NDArray[np.float64]


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
