"""Operators and tensors over named dims: what a model graph is made of, and how much work each operator is.

Every operator is an einsum-like contraction over named dims. Sizes of dims come from the model graph, except the two
reserved dims ``batch`` (b) and ``seq`` (s), which come from the workload. A sharded dim is handled by dividing its
size before asking: all functions here take *local* sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, EXPERTS, SEQ, TOP_K
from meshwright.costmodels.units import STRICT_RECORD, Name, NonNegativeFloat, PositiveInt


class OperatorKind(StrEnum):
    """The computation of an operator; decides which cost model answers for it."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    LOSS = "loss"
    CONVOLUTION = "convolution"
    PRODUCT = "product"
    """Of two activations, over the dims that both have and the output lacks."""
    SCAN = "scan"


class AttentionMask(StrEnum):
    """The keys that a query sees."""

    CAUSAL = "causal"
    FULL = "full"
    CHUNKED = "chunked"
    """Causal inside aligned chunks of ``window`` tokens: a chunk sees nothing of the chunks before it (Llama 4)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation: a name unique in its block, and its dims from outer to inner."""

    __pydantic_config__ = STRICT_RECORD

    name: Name
    dims: tuple[str, ...]

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Number of elements under the given (local) sizes of dims."""
        return math.prod(sizes[dim] for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter tensor. ``tied_to`` names the weight ("block/operator/weight") that owns the storage, if another does."""

    __pydantic_config__ = STRICT_RECORD

    name: Name
    dims: tuple[str, ...]
    tied_to: str | None = None

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Number of elements under the given (local) sizes of dims."""
        return math.prod(sizes[dim] for dim in self.dims)


_NEEDS_WEIGHTS = (OperatorKind.MATMUL, OperatorKind.EMBEDDING, OperatorKind.CONVOLUTION)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a block.

    inputs, outputs     activations; an input that no operator of the block produces is the block's own input
    weights             parameters; a fused projection (Q, K and V) has several and is one kernel; of a CONVOLUTION, first
                        the kernel of each output, in order, then biases
    saved               names of tensors kept for the backward pass (inputs or outputs), flash attention assumed
    flops_per_element   NORM, ELEMENTWISE and LOSS: FLOPs per element of the first input (survey 5.2 counts SwiGLU as 5);
                        SCAN: those beside its chunks and states (the corrections of a delta rule)
    mask, window        ATTENTION: causal or full, and the sliding window in tokens if there is one
    chunk               SCAN: tokens of a chunk of the state-space dual form (Mamba-2); None scans token by token (Mamba-1)
    """

    __pydantic_config__ = STRICT_RECORD

    name: Name
    kind: OperatorKind
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Weight, ...] = ()
    saved: tuple[str, ...] = ()
    flops_per_element: NonNegativeFloat = 0.0
    mask: AttentionMask | None = None
    window: PositiveInt | None = None
    chunk: PositiveInt | None = None

    def __post_init__(self) -> None:
        if not self.inputs or not self.outputs:
            raise ModelError(f"operator {self.name!r} needs at least one input and one output")
        known = {tensor.name for tensor in (*self.inputs, *self.outputs)}
        unknown = sorted(set(self.saved) - known)
        if unknown:
            raise ModelError(
                f"operator {self.name!r} saves tensors that it neither reads nor writes",
                given=unknown,
                allowed=", ".join(sorted(known)),
            )
        if (self.kind is OperatorKind.ATTENTION) != (self.mask is not None):
            raise ModelError(f"operator {self.name!r}: 'mask' goes with kind attention, and only with it")
        if self.mask is AttentionMask.CHUNKED and self.window is None:
            raise ModelError(f"attention {self.name!r} with a chunked mask needs 'window', the tokens of a chunk")
        if self.kind is OperatorKind.ATTENTION and len(self.inputs) != 3:
            raise ModelError(f"attention {self.name!r} takes query, key and value", given=len(self.inputs))
        if self.kind is OperatorKind.PRODUCT and (len(self.inputs) != 2 or self.weights):
            raise ModelError(f"product {self.name!r} takes two activations and no weights", given=len(self.inputs))
        if self.kind is OperatorKind.SCAN and len(self.inputs) != 4:
            raise ModelError(f"scan {self.name!r} takes x, B, C and time step", given=len(self.inputs))
        if self.chunk is not None and self.kind is not OperatorKind.SCAN:
            raise ModelError(f"operator {self.name!r}: 'chunk' goes with kind scan only", given=self.kind.value)
        if self.kind in _NEEDS_WEIGHTS and not self.weights:
            raise ModelError(f"operator {self.name!r} of kind {self.kind} needs at least one weight")
        if self.kind is OperatorKind.MATMUL:
            lost = set(self.contracted_dims) - {dim for weight in self.weights for dim in weight.dims}
            if lost:
                raise ModelError(
                    f"matmul {self.name!r} loses dims of its input that no weight of it contracts",
                    given=sorted(lost),
                    remedy="add them to an output, or to a weight",
                )

    @property
    def contracted_dims(self) -> tuple[str, ...]:
        """Dims of a MATMUL's first input that are summed away (they are in a weight and in no output)."""
        out = {dim for tensor in self.outputs for dim in tensor.dims}
        return tuple(dim for dim in self.inputs[0].dims if dim not in out)

    @property
    def routed_dims(self) -> tuple[str, ...]:
        """Dims of weights that are in no activation: routing picks one index of them (an expert) for each row."""
        in_activations = {dim for tensor in (*self.inputs, *self.outputs) for dim in tensor.dims}
        routed = (dim for weight in self.weights for dim in weight.dims if dim not in in_activations)
        return tuple(dict.fromkeys(routed))

    @property
    def dims(self) -> frozenset[str]:
        """Every dim that the operator touches."""
        tensors: tuple[Tensor | Weight, ...] = (*self.inputs, *self.outputs, *self.weights)
        return frozenset(dim for tensor in tensors for dim in tensor.dims)


def parameters(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Parameters of the operator under local sizes; tied weights count where their storage is, not here."""
    return sum(weight.elements(sizes) for weight in operator.weights if weight.tied_to is None)


def active_parameters(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Parameters of the operator that one token meets: of weights of each expert, those of its top k."""
    return sum(_met(weight, sizes) for weight in operator.weights if weight.tied_to is None)


def _met(weight: Weight, sizes: Mapping[str, int]) -> int:
    elements = weight.elements(sizes)
    # A weight with experts as its last dim is the router's, which every token meets whole.
    is_routed = EXPERTS in weight.dims[:-1]
    return elements * sizes[TOP_K] // sizes[EXPERTS] if is_routed else elements


def matmul_shape(operator: Operator, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """(m, n, k) of the GEMM that a MATMUL operator runs: m tokens, n output features (fused ones added), k contracted.

    With routed weights (experts) it is a grouped GEMM, ``matmul_groups`` of them sharing the m rows.
    """
    contracted = operator.contracted_dims
    not_features = {*contracted, *operator.routed_dims}
    k = math.prod(sizes[dim] for dim in contracted)
    m = math.prod(sizes[dim] for dim in operator.inputs[0].dims if dim not in contracted)
    n = sum(
        math.prod(sizes[dim] for dim in weight.dims if dim not in not_features)
        for weight in operator.weights
        if set(contracted) <= set(weight.dims)
    )
    return m, n, k


def matmul_groups(operator: Operator, sizes: Mapping[str, int]) -> int:
    """GEMMs among which a grouped MATMUL shares its rows: the number of (local) experts, 1 without routing."""
    return math.prod(sizes[dim] for dim in operator.routed_dims)


def product_shape(operator: Operator, sizes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """(m, n, k, batch) of the batched GEMM that a PRODUCT runs: rows of the first input, columns of the second, what both
    have and the output lacks, and what all three have."""
    first, second = (frozenset(tensor.dims) for tensor in operator.inputs)
    written = frozenset(operator.outputs[0].dims)
    parts = (written & first - second, written & second - first, first & second - written, first & second & written)
    m, n, k, batch = (math.prod(sizes[dim] for dim in sorted(dims)) for dims in parts)
    return m, n, k, batch


def query_tokens(operator: Operator) -> str:
    """The dim of an ATTENTION's queries that counts tokens: ``seq``, or of another sequence the dim after the batch."""
    query = operator.inputs[0].dims
    return SEQ if SEQ in query else query[1]


def key_tokens(operator: Operator) -> str:
    """The dim of an ATTENTION's keys that counts tokens."""
    key = operator.inputs[1].dims
    return SEQ if SEQ in key else key[1]


def key_value_elements(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Elements of an ATTENTION's keys and values under local sizes."""
    return sum(tensor.elements(sizes) for tensor in operator.inputs[1:])


def attention_pairs(operator: Operator, sizes: Mapping[str, int], kv_tokens: int | None = None, *, earlier: int = 0) -> float:
    """Query-key pairs a head computes for one sequence: causal kernels skip the masked half (DESIGN section 4).

    ``kv_tokens`` is the number of keys when it is not the local size of their dim (context parallelism, decode). Of a token
    slice every query also sees ``earlier`` keys: causal attention without a window.
    """
    q_tokens = sizes[query_tokens(operator)]
    keys = sizes[key_tokens(operator)] if kv_tokens is None else kv_tokens
    if operator.mask is AttentionMask.FULL:
        return float(q_tokens) * (keys if operator.window is None else min(keys, operator.window))
    if operator.mask is AttentionMask.CHUNKED and operator.window is not None:
        chunks, rest = divmod(keys, operator.window)
        causal = chunks * operator.window * (operator.window + 1) / 2 + rest * (rest + 1) / 2
        return causal * (q_tokens / keys)
    if operator.window is not None and operator.window < keys:
        w = operator.window
        # The first w queries see a growing prefix, the rest see w keys each.
        return (w * (w + 1) / 2 + (keys - w) * w) * (q_tokens / keys)
    return q_tokens * (earlier + (keys + 1) / 2)


def forward_flops(operator: Operator, sizes: Mapping[str, int], kv_tokens: int | None = None, *, earlier: int = 0) -> float:
    """FLOPs of the forward pass under local sizes (2 per multiply-add); ``earlier`` as in `attention_pairs`."""
    if operator.kind is OperatorKind.MATMUL:
        m, n, k = matmul_shape(operator, sizes)
        return 2.0 * m * n * k
    if operator.kind is OperatorKind.ATTENTION:
        query, _, value = operator.inputs
        heads_and_dim = query.elements(sizes) / (sizes[BATCH] * sizes[query_tokens(operator)])
        value_dim = sizes[value.dims[-1]]
        query_dim = sizes[query.dims[-1]]
        pairs = attention_pairs(operator, sizes, kv_tokens, earlier=earlier) * sizes[BATCH]
        # Scores (2 d_qk) and their product with the values (2 d_v) for every pair and head.
        return pairs * heads_and_dim * 2.0 * (1.0 + value_dim / query_dim)
    if operator.kind is OperatorKind.PRODUCT:
        return 2.0 * math.prod(product_shape(operator, sizes))
    if operator.kind is OperatorKind.CONVOLUTION:
        return _convolution_flops(operator, sizes)
    if operator.kind is OperatorKind.SCAN:
        return scan_flops(operator, sizes)
    return operator.flops_per_element * operator.inputs[0].elements(sizes)


def _convolution_flops(operator: Operator, sizes: Mapping[str, int]) -> float:
    """Each element of a kernel is used once, in a multiply-add, for every position of the output."""
    total = 0.0
    for tensor, weight in zip(operator.outputs, operator.weights, strict=False):
        positions = math.prod(sizes[dim] for dim in tensor.dims if dim not in weight.dims)
        total += 2.0 * positions * weight.elements(sizes)
    return total


# exp(dt A) 2, dt B x 2, state update 2, product with C and sum 2: a channel's state element in a token of Mamba-1.
_SCAN_FLOPS_PER_STATE_ELEMENT = 8.0


def scan_flops(operator: Operator, sizes: Mapping[str, int]) -> float:
    """FLOPs of a selective scan: inputs x [.., heads, p], B [.., n], C [.., n] and the time step.

    With chunks of l tokens (survey section 5.3, steps 1 to 5): C B^T and its product with x inside chunks, 2 h s l (n + p);
    states of chunks and their effect on outputs, 2 x 2 h s p n; the scan over s / l states, 2 h (s / l) p n. The survey's
    total writes its last term without the factor l of its own step 5; here the step's term is used.
    """
    x, b = operator.inputs[0], operator.inputs[1]
    state = sizes[b.dims[-1]]
    more = operator.flops_per_element * x.elements(sizes)
    if operator.chunk is None:
        return _SCAN_FLOPS_PER_STATE_ELEMENT * x.elements(sizes) * state + more
    width = sizes[x.dims[-1]]
    heads_and_tokens = x.elements(sizes) / width
    chunk = min(operator.chunk, sizes[SEQ])
    inside_chunks = 2.0 * heads_and_tokens * chunk * (state + width)
    through_states = (4.0 + 2.0 / chunk) * heads_and_tokens * width * state
    return inside_chunks + through_states + more
