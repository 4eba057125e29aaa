"""Decoding with KV parallelism, in closed form over arrays of layouts: Helix, Medha, tensor parallelism, attention groups.

Formulas are those of Helix Parallelism (Bhatia et al. 2025): appendix A for what a rank reads, section 2.1 for attention on
KVP x TPA ranks, section 2.2 for the feed-forward network on the same ranks as TPF x EP, section 2.1.3 for HOP-B. Arrays
broadcast together. A layer's time is the larger of reading and computing for each of its phases, plus collectives and kernel
starts. No plan uses them: plans take step times of engines as they are (docs/serving-costs.md, "Time of a step").
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sizes = float | int | Floats | NDArray[np.int64]

COMMUNICATED_BYTES = 2.0
"""Partial results travel and are added up in 16 bits."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """A model in decoding. Elements are weights of one layer; ``tpa`` of them are divided by the ranks that split heads.

    layers, moe_layers        all layers, and those with routed experts
    hidden, heads, kv_heads   kv_heads is 1 for a latent cache
    cache_elements            of one token, layer and key/value head, keys and values together
    pair_flops                FLOPs of one query head and cached token
    value_elements            of one query head that partial outputs have
    split_elements            attention weights divided by TPA (query, absorbed expansions)
    kv_elements               attention weights of one key/value head
    copied_elements           attention weights on every rank (latents)
    output_elements           weights of the output projection
    ffn, shared_ffn           widths of dense layers and of the shared expert
    experts, top_k, expert_ffn   routed experts
    attention_kernels, ffn_kernels, moe_kernels   kernels that a layer starts one after the other
    """

    layers: int
    moe_layers: int
    hidden: int
    heads: int
    kv_heads: int
    cache_elements: int
    pair_flops: float
    value_elements: int
    split_elements: float
    kv_elements: float
    copied_elements: float
    output_elements: float
    ffn: int
    shared_ffn: int
    experts: int
    top_k: int
    expert_ffn: int
    attention_kernels: int
    ffn_kernels: int
    moe_kernels: int


@dataclass(frozen=True, slots=True)
class DecodeHardware:
    """A rank and its links, with one set of overheads.

    element_bytes       of weights and cache
    start_s             time that each kernel of a layer costs before it does anything
    collective_s        latency of a collective of two ranks; each doubling adds ``doubling_s``
    """

    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    element_bytes: float
    start_s: float
    collective_s: float
    doubling_s: float


@dataclass(frozen=True, eq=False)
class Layouts:
    """Layouts, one entry each; ``batch`` is the sequences of one attention group in one pipeline slot.

    tpa, kvp       ranks of attention; ``groups`` of them run attention for sequences of their own
    tpf, ep        ranks of the feed-forward network: TPF x EP
    pp             stages, each of the ranks of attention
    hop_b          1 where the all-to-all is pipelined by sequence, else 0
    """

    tpa: Floats
    kvp: Floats
    groups: Floats
    tpf: Floats
    ep: Floats
    pp: Floats
    batch: Floats
    hop_b: Floats

    @property
    def devices(self) -> Floats:
        """Devices of a layout."""
        return self.tpa * self.kvp * self.groups * self.pp

    @property
    def sequences(self) -> Floats:
        """Sequences that a layout decodes at once."""
        return self.batch * self.groups * self.pp

    def chosen(self, which: NDArray[np.bool_]) -> Layouts:
        """The entries of a mask."""
        return Layouts(*(getattr(self, field.name)[which] for field in fields(self)))


def kv_read_s(
    *, batch: Sizes, kv_heads: int, head_size: float, tokens: Sizes, tpa: Sizes, kvp: Sizes, element_bytes: float,
    memory_bytes_per_s: float,
) -> Floats:  # fmt: skip
    """Seconds in which a rank reads its share of a layer's cache: B 2 ceil(K/TPA) Hsz (S/KVP) bytes / MemBW (appendix A)."""
    heads = np.ceil(kv_heads / np.asarray(tpa, np.float64))
    read_bytes = np.asarray(batch, np.float64) * 2.0 * heads * head_size * (np.asarray(tokens) / kvp) * element_bytes
    return np.asarray(read_bytes / memory_bytes_per_s)


def weight_read_s(
    *, hidden: int, query_heads: int, kv_heads: int, head_size: int, ffn: int, tpa: Sizes, tpf: Sizes, element_bytes: float,
    memory_bytes_per_s: float,
) -> Floats:  # fmt: skip
    """Seconds in which a rank reads a layer's weights: (2H(Q/TPA)Hsz + 2H ceil(K/TPA)Hsz + 3HF/TPF) bytes / MemBW (appendix A,
    SwiGLU)."""
    split = np.asarray(tpa, np.float64)
    attention = 2.0 * hidden * head_size * (query_heads / split + np.ceil(kv_heads / split))
    return np.asarray((attention + 3.0 * hidden * ffn / np.asarray(tpf, np.float64)) * element_bytes / memory_bytes_per_s)


def lockstep_s(requests: Sizes, compute_s: Sizes, communicate_s: Sizes) -> Floats:
    """All requests compute, then all communicate (Figure 3, top)."""
    return np.asarray(np.asarray(requests, np.float64) * (np.asarray(compute_s) + np.asarray(communicate_s)))


def hop_b_s(requests: Sizes, compute_s: Sizes, communicate_s: Sizes) -> Floats:
    """Each request communicates while the next computes: a + (n - 1) max(a, c) + c (Figure 3, bottom)."""
    a, c = np.asarray(compute_s, np.float64), np.asarray(communicate_s, np.float64)
    return np.asarray(a + (np.asarray(requests, np.float64) - 1.0) * np.maximum(a, c) + c)


def token_s(shape: DecodeShape, on: DecodeHardware, layouts: Layouts, *, context: float) -> Floats:
    """Seconds from one token of a sequence to its next: all layers, and the way from stage to stage."""
    attention_s = _attention_s(shape, on, layouts, context)
    dense_s = _feed_forward_s(shape, on, layouts, shape.ffn) + shape.ffn_kernels * on.start_s
    dense_s = dense_s + _all_reduce_s(on, layouts.batch * shape.hidden, layouts.tpf * layouts.ep)
    layers_s = shape.layers * attention_s + (shape.layers - shape.moe_layers) * dense_s
    if shape.moe_layers:
        layers_s = layers_s + shape.moe_layers * _expert_layer_s(shape, on, layouts)
    sent = layouts.batch * shape.hidden * COMMUNICATED_BYTES / on.link_bytes_per_s + on.collective_s
    return np.asarray(layers_s + (layouts.pp - 1.0) * sent)


def memory_used_bytes(shape: DecodeShape, on: DecodeHardware, layouts: Layouts, *, context: float) -> Floats:
    """Bytes of weights and caches on a rank; a stage holds the caches of all sequences in the pipeline."""
    attention = _attention_elements(shape, layouts) + shape.output_elements / _output_ranks(layouts)
    ranks = layouts.tpf * layouts.ep
    dense = 3.0 * shape.hidden * shape.ffn / ranks
    experts = 3.0 * shape.hidden * (shape.experts * shape.expert_ffn / ranks + shape.shared_ffn / _shared_ranks(layouts))
    weights = shape.layers * attention + (shape.layers - shape.moe_layers) * dense + shape.moe_layers * experts
    heads = np.ceil(shape.kv_heads / layouts.tpa)
    cache = shape.layers * heads * shape.cache_elements * context / layouts.kvp * layouts.batch * layouts.pp
    return np.asarray((weights + cache) / layouts.pp * on.element_bytes)


def _attention_s(shape: DecodeShape, on: DecodeHardware, layouts: Layouts, context: float) -> Floats:
    """Projections, attention and its exchange over KVP ranks, output projection and all-reduce of one layer."""
    batch, n = layouts.batch, layouts.tpa * layouts.kvp
    projected_s = _product_s(on, _attention_elements(shape, layouts), batch)
    read_s = kv_read_s(
        batch=batch, kv_heads=shape.kv_heads, head_size=shape.cache_elements / 2.0, tokens=context, tpa=layouts.tpa,
        kvp=layouts.kvp, element_bytes=on.element_bytes, memory_bytes_per_s=on.memory_bytes_per_s,
    )  # fmt: skip
    flops = batch * (shape.heads / layouts.tpa) * (context / layouts.kvp) * shape.pair_flops
    core_s = np.maximum(read_s, flops / on.flops_per_s)
    partial = batch * (shape.heads / layouts.tpa) * shape.value_elements * (layouts.kvp - 1.0) / layouts.kvp
    exchange_s = np.where(
        layouts.kvp > 1, _latency_s(on, layouts.kvp) + partial * COMMUNICATED_BYTES / on.link_bytes_per_s, 0.0
    )
    overlapped_s = hop_b_s(batch, core_s / batch, exchange_s / batch)
    with_exchange_s = np.where(layouts.hop_b > 0, overlapped_s, core_s + exchange_s)
    output_s = _product_s(on, shape.output_elements / _output_ranks(layouts), batch)
    reduced_s = _all_reduce_s(on, batch * shape.hidden, n)
    return np.asarray(projected_s + with_exchange_s + output_s + reduced_s + shape.attention_kernels * on.start_s)


def _expert_layer_s(shape: DecodeShape, on: DecodeHardware, layouts: Layouts) -> Floats:
    """Routed and shared experts of one layer, with what brings results together: an all-reduce over TPF x EP, or dispatch and
    combine between attention groups."""
    tokens = layouts.batch * layouts.groups
    routed = tokens * shape.top_k
    # Distinct experts of a balanced batch: E (1 - (1 - k/E)^tokens), spread over ep ranks, at least one where any is hit.
    distinct = shape.experts * (1.0 - (1.0 - shape.top_k / shape.experts) ** tokens)
    here = np.maximum(1.0, distinct / layouts.ep)
    elements = 3.0 * shape.hidden * shape.expert_ffn / layouts.tpf
    rows = np.maximum(1.0, routed / layouts.ep)
    read_s = here * elements * on.element_bytes / on.memory_bytes_per_s
    experts_s = np.maximum(read_s, 2.0 * rows * elements / on.flops_per_s)
    shared_s = _product_s(on, 3.0 * shape.hidden * shape.shared_ffn / _shared_ranks(layouts), layouts.batch)
    together_s = _all_reduce_s(on, layouts.batch * shape.hidden, layouts.tpf * layouts.ep)
    # Each way a token goes to its top_k experts' ranks; results come back to be added where the token lives.
    moved = layouts.batch * np.minimum(shape.top_k, layouts.ep) * shape.hidden * COMMUNICATED_BYTES / layouts.tpa
    exchanged_s = 2.0 * (_latency_s(on, layouts.tpf * layouts.ep) + moved / on.link_bytes_per_s)
    combined_s = np.where(layouts.groups > 1, exchanged_s, together_s)
    return np.asarray(experts_s + shared_s + combined_s + shape.moe_kernels * on.start_s)


def _feed_forward_s(shape: DecodeShape, on: DecodeHardware, layouts: Layouts, width: int) -> Floats:
    """A dense network of one layer; attention groups each run it for their own sequences on all its ranks together."""
    return _product_s(on, 3.0 * shape.hidden * width / (layouts.tpf * layouts.ep), layouts.batch * layouts.groups)


def _attention_elements(shape: DecodeShape, layouts: Layouts) -> Floats:
    """Weights of the projections into attention on a rank; KVP ranks each hold those of their TPA rank whole (2.1.1)."""
    kv = shape.kv_elements * np.ceil(shape.kv_heads / layouts.tpa)
    return np.asarray(shape.split_elements / layouts.tpa + kv + shape.copied_elements)


def _output_ranks(layouts: Layouts) -> Floats:
    """Ranks of the output projection: all of attention's under Helix, TPA where partial outputs come back to one group (Medha),
    told by a feed-forward network on fewer ranks."""
    n = layouts.tpa * layouts.kvp
    return np.where(layouts.tpf * layouts.ep < n, layouts.tpa, n)


def _shared_ranks(layouts: Layouts) -> Floats:
    """Ranks of the shared expert: all of the network's, or those of an attention group that runs it for itself."""
    return np.where(layouts.groups > 1, layouts.tpa, layouts.tpf * layouts.ep)


def _product_s(on: DecodeHardware, elements: Sizes, rows: Floats) -> Floats:
    """A product with so many weights on a rank: read once, multiplied for every row."""
    read_s = np.asarray(elements) * on.element_bytes / on.memory_bytes_per_s
    return np.asarray(np.maximum(read_s, 2.0 * np.asarray(elements) * rows / on.flops_per_s))


def _all_reduce_s(on: DecodeHardware, elements: Floats, n: Floats) -> Floats:
    moved = 2.0 * (n - 1.0) / n * elements * COMMUNICATED_BYTES
    return np.asarray(np.where(n > 1, _latency_s(on, n) + moved / on.link_bytes_per_s, 0.0))


def _latency_s(on: DecodeHardware, n: Floats) -> Floats:
    """Latency of a collective of n ranks of one NVLink domain."""
    return np.asarray(on.collective_s + on.doubling_s * np.maximum(0.0, np.log2(n) - 1.0))
