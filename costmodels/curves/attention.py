"""Time of fused (flash) attention kernels on one device: prefill and training forward, and decode over a KV cache.

Prefill is bound by the matrix units, in waves of query tiles over the cores; decode by reading the cache, in waves of
cache chunks. What this leaves unexplained is held by a coarse table of log-ratios over sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays
from meshwright.costmodels.curves.gemm import Silicon, trilinear

Floats = NDArray[np.float64]

QUERY_TILE = 128.0
"""Query rows a thread block holds (FlashAttention-2, section 3.3: blocks of 64 or 128 rows)."""

CACHE_CHUNK = 256.0
"""Keys a thread block reads when the cache is split over blocks (the page size of Flash-Decoding kernels)."""


class PrefillCurve(NamedTuple):
    """Constants of forward attention of one device, number format and head dimension.

    cores              compute units that query tiles are spread over
    launch_s           fixed time of a kernel on the device
    peak_efficiency    share of the matrix units' peak in the inner loop
    ramp_keys          keys' worth of work that starting and finishing a tile costs
    wave_quantisation  0: tiles spread evenly; 1: a part-filled last wave costs a whole one
    memory_efficiency  share of the data sheet's memory bandwidth that is reached
    log2_queries, log2_heads, log2_group, correction   log-ratio of measured to modelled time over query tokens,
                       sequences x query heads, and query heads a key/value head
    tile_padding       0: a query tile costs as many rows as it has; 1: one that is part-filled costs a whole one
    """

    cores: float
    launch_s: float
    peak_efficiency: float
    ramp_keys: float
    wave_quantisation: float
    memory_efficiency: float
    log2_queries: Floats
    log2_heads: Floats
    log2_group: Floats
    correction: Floats
    tile_padding: float = 0.0


class DecodeCurve(NamedTuple):
    """Constants of decode attention of one device, cache format and head dimension.

    cores              compute units that cache chunks are spread over
    launch_s           fixed time of a kernel (and of joining the partial results) on the device
    memory_efficiency  share of the data sheet's memory bandwidth that is reached
    saturating_waves   waves of cache chunks in flight that it takes to reach it
    peak_efficiency    share of the matrix units' peak reached on one query row a head
    head_s             time each query head of each sequence costs, whatever its cache
    log2_keys, log2_heads, log2_group, correction   log-ratio of measured to modelled time over cached tokens,
                       sequences x key/value heads, and query heads a key/value head
    """

    cores: float
    launch_s: float
    memory_efficiency: float
    saturating_waves: float
    peak_efficiency: float
    head_s: float
    log2_keys: Floats
    log2_heads: Floats
    log2_group: Floats
    correction: Floats


class AttentionShape(NamedTuple):
    """Sizes of one attention call: ``flops`` counts every pair that the mask leaves."""

    flops: float
    q_tokens: float
    kv_tokens: float
    batch: float
    heads: float
    kv_heads: float
    head_dim: float


@compiled_once_it_pays(pays_after=15_000)
def prefill_s(shape: AttentionShape, curve: PrefillCurve, silicon: Silicon) -> float:
    """Seconds of a forward pass over whole sequences or chunks of them."""
    log_ratio = trilinear(
        math.log2(shape.q_tokens), math.log2(shape.batch * shape.heads), math.log2(shape.heads / shape.kv_heads),
        curve.log2_queries, curve.log2_heads, curve.log2_group, curve.correction,
    )  # fmt: skip
    return modelled_prefill_s(shape, curve, silicon) * math.exp(log_ratio)


@compiled_once_it_pays(pays_after=150_000)
def modelled_prefill_s(shape: AttentionShape, curve: PrefillCurve, silicon: Silicon) -> float:
    """Seconds of a forward pass by the physical constants alone."""
    waves = shape.batch * shape.heads * math.ceil(shape.q_tokens / QUERY_TILE) / curve.cores
    counted_waves = waves + curve.wave_quantisation * (math.ceil(waves) - waves)
    # Pairs a query row computes on average: 4 FLOPs a pair and head dimension element (scores and weighted values).
    keys_per_query = shape.flops / (4.0 * shape.head_dim * shape.batch * shape.heads * shape.q_tokens)
    spent = counted_waves / waves * (1.0 + curve.ramp_keys / keys_per_query)
    whole_tiles = math.ceil(shape.q_tokens / QUERY_TILE) * QUERY_TILE / shape.q_tokens
    computed = 1.0 + curve.tile_padding * (whole_tiles - 1.0)
    matrix_s = shape.flops / (silicon.peak_flops * curve.peak_efficiency) * spent * computed
    elements = 2.0 * shape.batch * shape.head_dim * (shape.q_tokens * shape.heads + shape.kv_tokens * shape.kv_heads)
    memory_s = elements * silicon.element_bytes / (silicon.memory_bytes_per_s * curve.memory_efficiency)
    return curve.launch_s + max(matrix_s, memory_s)


@compiled_once_it_pays(pays_after=15_000)
def decode_s(shape: AttentionShape, curve: DecodeCurve, silicon: Silicon) -> float:
    """Seconds of one new token for each sequence of a batch."""
    log_ratio = trilinear(
        math.log2(shape.kv_tokens), math.log2(shape.batch * shape.kv_heads), math.log2(shape.heads / shape.kv_heads),
        curve.log2_keys, curve.log2_heads, curve.log2_group, curve.correction,
    )  # fmt: skip
    return modelled_decode_s(shape, curve, silicon) * math.exp(log_ratio)


@compiled_once_it_pays(pays_after=150_000)
def modelled_decode_s(shape: AttentionShape, curve: DecodeCurve, silicon: Silicon) -> float:
    """Seconds of a decode step by the physical constants alone; ``silicon.element_bytes`` is the cache's width."""
    waves = shape.batch * shape.kv_heads * math.ceil(shape.kv_tokens / CACHE_CHUNK) / curve.cores
    cache_bytes = 2.0 * shape.batch * shape.kv_tokens * shape.kv_heads * shape.head_dim * silicon.element_bytes
    reached_bytes_per_s = silicon.memory_bytes_per_s * curve.memory_efficiency
    # With too few chunks in flight the memory queues run dry: bandwidth falls as the square root, fitted.
    memory_s = cache_bytes / (reached_bytes_per_s * math.sqrt(min(1.0, waves / curve.saturating_waves)))
    matrix_s = shape.flops / (silicon.peak_flops * curve.peak_efficiency)
    return curve.launch_s + max(memory_s, matrix_s) + curve.head_s * shape.batch * shape.heads


@compiled_once_it_pays(pays_after=100_000)
def prefills_s(shapes: Floats, curve: PrefillCurve, silicon: Silicon) -> Floats:
    """`prefill_s` of each row of an array whose columns are the fields of AttentionShape."""
    seconds = np.empty(shapes.shape[0])
    for i in range(shapes.shape[0]):
        seconds[i] = prefill_s(attention_shape(shapes[i]), curve, silicon)
    return seconds


@compiled_once_it_pays(pays_after=100_000)
def decodes_s(shapes: Floats, curve: DecodeCurve, silicon: Silicon) -> Floats:
    """`decode_s` of each row of an array whose columns are the fields of AttentionShape."""
    seconds = np.empty(shapes.shape[0])
    for i in range(shapes.shape[0]):
        seconds[i] = decode_s(attention_shape(shapes[i]), curve, silicon)
    return seconds


@compiled_once_it_pays(pays_after=500_000)
def attention_shape(row: Floats) -> AttentionShape:
    """One row of an array of shapes as a record."""
    return AttentionShape(row[0], row[1], row[2], row[3], row[4], row[5], row[6])
