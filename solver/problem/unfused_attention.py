"""Attention without a fused kernel, and dropout: the same model graph with the tensors that then go through memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ
from meshwright.costmodels.model.implementation import AttentionKernels, Dropout
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.solver.problem.graph import Block, ModelGraph

_HALF_KEYS, _HALF_HIDDEN, _DOUBLE_KEYS = "half_keys", "half_hidden", "double_keys"
"""Dims of dropout masks, one byte an element being half an element of 16 bits, and of scores in fp32, two of them."""

_RESIDUAL_ENDING = "_residual"


def without_fused_attention(
    graph: ModelGraph, *, seq_len: int, dropout: Dropout, kernels: AttentionKernels = AttentionKernels.UNFUSED
) -> ModelGraph:
    """The graph with each attention as scores, softmax, dropout and the product with the values, all through memory.

    Both products are memory-bound: they do 2 d_h FLOPs for each score of 2 bytes, below the ridge of an A100 up to a head
    dimension of 150. Kept for backward are the softmax, its mask and what dropout leaves: 5 a s^2 b bytes (Korthikanti et
    al., MLSys'23, section 4.1). Kernels of the causal mask compute all pairs. Step by step, the softmax is kept in fp32, and
    again as the product reads it. A graph without fused attention is returned as it is. Raises ModelError for attention that
    reads more than queries, keys and values.
    """
    if not any(op.kind is OperatorKind.ATTENTION for block in graph.blocks for op in block.operators):
        return graph
    dims = {**graph.dims, _HALF_KEYS: max(1, seq_len // 2), _DOUBLE_KEYS: 2 * seq_len}
    blocks = tuple(
        replace(block, operators=tuple(step for op in block.operators for step in _unfused(op, dropout, kernels)))
        for block in graph.blocks
    )
    return replace(graph, dims=dims, blocks=blocks)


def with_dropout(graph: ModelGraph) -> ModelGraph:
    """The graph with the masks of dropout before each residual sum, one byte an element (the same paper, section 4.1).

    Bias, dropout and sum are one kernel, so nothing else goes through memory. A graph that has them is returned as it is.
    """
    if HIDDEN not in graph.dims or _HALF_HIDDEN in graph.dims:
        return graph
    dims = {**graph.dims, _HALF_HIDDEN: max(1, graph.dims[HIDDEN] // 2)}
    return replace(graph, dims=dims, blocks=tuple(_masked(block) for block in graph.blocks))


def _masked(block: Block) -> Block:
    return replace(block, operators=tuple(_with_mask(op) for op in block.operators))


def _with_mask(operator: Operator) -> Operator:
    if operator.kind is not OperatorKind.ELEMENTWISE or not operator.name.endswith(_RESIDUAL_ENDING):
        return operator
    mask = Tensor(f"{operator.name}_mask", (BATCH, SEQ, _HALF_HIDDEN))
    if mask.name in operator.saved:
        return operator
    return replace(operator, outputs=(*operator.outputs, mask), saved=(*operator.saved, mask.name))


def _unfused(operator: Operator, dropout: Dropout, kernels: AttentionKernels) -> Iterator[Operator]:
    if operator.kind is not OperatorKind.ATTENTION:
        yield operator
        return
    if len(operator.inputs) != 3:
        raise ModelError(
            "this attention has no cost model without a fused kernel",
            given=operator.name,
            allowed="attention of a query, a key and a value",
            remedy="leave implementation.attention_kernels out",
        )
    query, key, value = operator.inputs
    pairs = (BATCH, query.dims[2], SEQ, SEQ)
    scores, probs = Tensor("scores", pairs), Tensor("probs", pairs)
    yield _vector("scores", (query, key), (scores,), saved=(query.name, key.name))
    if kernels is AttentionKernels.UNFUSED:
        yield _vector("softmax", (scores,), (probs,), saved=(probs.name,))
    else:
        in_fp32 = (*pairs[:3], _DOUBLE_KEYS)
        cast, masked, normed = (Tensor(name, in_fp32) for name in ("scores_fp32", "scores_masked", "probs_fp32"))
        yield _vector("scores_cast", (scores,), (cast,), saved=())
        yield _vector("scores_mask", (cast,), (masked,), saved=())
        yield _vector("softmax", (masked,), (normed,), saved=(normed.name,))
        yield _vector("probs_cast", (normed,), (probs,), saved=(probs.name,))
    if dropout is Dropout.MASKED:
        dropped, mask = Tensor("probs_dropped", pairs), Tensor("probs_mask", (*pairs[:3], _HALF_KEYS))
        yield _vector("attention_dropout", (probs,), (dropped, mask), saved=(dropped.name, mask.name))
        probs = dropped
    yield _vector("context", (probs, value), operator.outputs, saved=(value.name, operator.outputs[0].name))


def _vector(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], *, saved: tuple[str, ...]) -> Operator:
    # Of kind norm, because selective recomputation runs attention cores again, softmax and dropout included.
    return Operator(name, OperatorKind.NORM, inputs, outputs, saved=saved)
