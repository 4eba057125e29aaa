"""Memory of a serving replica: weights, caches, states and workspace of one block on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.model.dims import BATCH, EXPERT_FFN, EXPERTS, SEQ, VOCAB
from meshwright.costmodels.model.experts import BALANCED, ExpertRouting
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import RankGrid, cache_sizes, is_expert_step, is_routed, local_sizes
from meshwright.costmodels.queueing.simulation.disaggregated import CacheTransfer
from meshwright.costmodels.serving.attention import latent_cache
from meshwright.costmodels.serving.engine_profile import CACHE_BLOCK_TOKENS, ServingPrecision
from meshwright.costmodels.serving.operators import state_bytes

UNLIMITED_TOKENS = 2**62
"""Tokens that a cache holds which keeps nothing."""


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """The bytes that sequences keep on one rank.

    per_token      of layers that keep every token
    windowed       by window: bytes a token of layers that need no more than the window (sliding and chunked attention)
    per_sequence   recurrent states
    """

    per_token: float = 0.0
    windowed: Mapping[int, float] = field(default_factory=dict)
    per_sequence: float = 0.0

    def plus(self, other: CacheBytes, *, times: int = 1) -> CacheBytes:
        """This and ``times`` copies of another."""
        windows = {**self.windowed, **other.windowed}
        windowed = {w: self.windowed.get(w, 0.0) + times * other.windowed.get(w, 0.0) for w in windows}
        return CacheBytes(self.per_token + times * other.per_token, windowed, self.per_sequence + times * other.per_sequence)

    def tokens_that_fit(self, free_bytes: float, *, sequences: int, step_tokens: int) -> int:
        """Tokens that fit in whole blocks, of up to ``sequences`` sequences at once.

        Layers with a window either keep every token, or a window of each sequence and the tokens of a step: the engine frees
        what lies behind it (vLLM, hybrid KV cache manager). Both are room enough; the roomier counts.
        """
        free_bytes -= sequences * self.per_sequence
        bounded = free_bytes - self._window_bytes(sequences=sequences, step_tokens=step_tokens)
        every = self.per_token + sum(self.windowed.values())
        return max(_blocks_of_tokens(free_bytes, every), _blocks_of_tokens(bounded, self.per_token))

    def bytes_of(self, tokens: int, *, sequences: int, step_tokens: int) -> float:
        """Bytes that a cache of so many tokens is given."""
        if tokens >= UNLIMITED_TOKENS:
            tokens = 0
        window_bytes = self._window_bytes(sequences=sequences, step_tokens=step_tokens)
        windows = min(tokens * sum(self.windowed.values()), window_bytes)
        return tokens * self.per_token + windows + sequences * self.per_sequence

    def _window_bytes(self, *, sequences: int, step_tokens: int) -> float:
        return sum((sequences * window + step_tokens) * size for window, size in self.windowed.items())


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes of one copy of a block on one rank.

    tied_bytes     weights whose owner is another block, by the owner ("block/operator/weight")
    cache          keys, values, latents and states
    token_bytes    activations of one token of a step at the fullest moment
    answer_bytes   the same of a token that every cp group of ranks runs
    expert_bytes   of them those of routed experts, which engines keep
    logits         logits of one sequence that gets a token
    """

    weights_bytes: float
    tied_bytes: Mapping[str, float]
    cache: CacheBytes
    token_bytes: float
    expert_bytes: float
    logits: float
    answer_bytes: float


def block_memory(
    operators: Sequence[Operator],
    dims: Mapping[str, int],
    *,
    grid: RankGrid,
    precision: ServingPrecision,
    routing: ExpertRouting = BALANCED,
) -> BlockMemory:
    """Memory of a block on one rank of a grid, copies of hot experts included."""
    weights, token, expert, logits = 0.0, 0.0, 0.0, 0.0
    cache = CacheBytes()
    tied: dict[str, float] = {}
    one_token = {**dims, BATCH: 1, SEQ: 1}
    # The residual stream stays while an operator works on its branch.
    residual = operators[0].inputs[0].elements(one_token)
    for operator in operators:
        local = local_sizes(operator, one_token, grid)
        if is_routed(operator):
            local[EXPERTS] = (dims[EXPERTS] + routing.redundant_experts) // grid.ep
        for weight in operator.weights:
            size = weight.elements(_padded(local, operator, precision)) * precision.of(operator).size_bytes
            if weight.tied_to is None:
                weights += size
            else:
                tied[weight.tied_to] = size
        cache = cache.plus(_cache(operator, operators, one_token, grid, precision))
        if VOCAB in operator.dims and operator.kind is not OperatorKind.EMBEDDING:
            logits = max(logits, float(dims[VOCAB]))
        else:
            live = sum(tensor.elements(local) for tensor in (*operator.inputs, *operator.outputs))
            # Every attention group's tokens come to the experts, whose rows are spread over the ep ranks.
            groups = grid.token_groups / grid.ep if is_expert_step(operator) else 1.0
            live_bytes = (live * groups + residual) * precision.activations.size_bytes
            token = max(token, live_bytes)
            if is_routed(operator) and precision.of(operator) is not WeightFormat.MXFP4:
                expert = max(expert, live_bytes)
    answer = token
    if grid.cp > 1:
        # A rank has its share of a step's tokens, and the gathered keys and values of them all.
        token = token / grid.cp + cache.per_token + sum(cache.windowed.values())
        expert /= grid.cp
    return BlockMemory(weights, tied, cache, token, expert, logits, answer)


EXPERT_WIDTH_STEP = 256
"""Widths of MXFP4 experts are filled up to multiples of this when they are loaded (vLLM, mxfp4.py): gpt-oss-120b takes 64.4 GiB
on one H100, 60.7 without."""


def _padded(local: dict[str, int], operator: Operator, precision: ServingPrecision) -> dict[str, int]:
    if not is_routed(operator) or precision.of(operator) is not WeightFormat.MXFP4 or EXPERT_FFN not in local:
        return local
    return local | {EXPERT_FFN: -(-local[EXPERT_FFN] // EXPERT_WIDTH_STEP) * EXPERT_WIDTH_STEP}


def _cache(
    operator: Operator, operators: Sequence[Operator], one_token: Mapping[str, int], grid: RankGrid, precision: ServingPrecision
) -> CacheBytes:
    if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
        return CacheBytes(per_sequence=state_bytes(operator, local_sizes(operator, one_token, grid)))
    if operator.kind is not OperatorKind.ATTENTION:
        return CacheBytes()
    latent = latent_cache(operators, one_token)
    if latent is not None:
        elements = latent.elements
    else:
        local = cache_sizes(operator, one_token, grid)
        elements = sum(tensor.elements(local) for tensor in operator.inputs[1:])
    size = elements * precision.kv.size_bytes / grid.kvp
    return CacheBytes(per_token=size) if operator.window is None else CacheBytes(windowed={operator.window: size})


def _blocks_of_tokens(free_bytes: float, bytes_per_token: float) -> int:
    if bytes_per_token == 0.0:
        return UNLIMITED_TOKENS if free_bytes >= 0.0 else 0
    return max(0, int(free_bytes / (bytes_per_token * CACHE_BLOCK_TOKENS))) * CACHE_BLOCK_TOKENS


# The transfer time of keys and values from a prefill worker to a decode worker over the real links.


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Devices of one worker: ``devices`` of a node group, from rank ``first``."""

    group: NodeGroup
    first: int
    devices: int


def kv_transfer(
    cluster: Cluster, sender: WorkerPlace, receiver: WorkerPlace, *, bytes_per_token: float, one_node: bool
) -> CacheTransfer:
    """CacheTransfer of a token's keys and values, ``bytes_per_token`` in all, between any sender and receiver of two pools.

    Inside one node devices use the node's fabric; between nodes each device has its share of the node's network cards, and
    the smaller of both workers' shares carries the transfer (oversubscription of the network between nodes divides it).
    Sends start when the prompt is done (vLLM's NixlConnector pulls whole requests), so nothing is hidden behind prefill.
    """
    if one_node:
        node = sender.group.node
        bandwidth = min(sender.devices, receiver.devices) * node.intra.bytes_per_s
        return CacheTransfer(node.intra.latency_s, bytes_per_token / bandwidth)
    shares = [
        place.devices * place.group.node.inter.bytes_per_s / place.group.node.devices_per_node for place in (sender, receiver)
    ]
    bandwidth = min(shares) / cluster.oversubscription
    latency_s = max(place.group.node.inter.latency_s for place in (sender, receiver))
    return CacheTransfer(latency_s, bytes_per_token / bandwidth)
