"""Multi-token prediction: modules beside the head, each of which predicts one more token of every position while training.

A module joins the stream of the layer before it with the embedding of the next token, runs one more layer, and reads the head
(Gloeckle et al. 2024; DeepSeek-V3 report, section 2.2; Megatron-Core's ``--mtp-num-layers``). Table and head are the model's
own. All modules are part of the block with the head: launchers run them on its stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ, VOCAB
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight
from meshwright.solver.problem.graph import RESIDUAL, Block, ModelGraph

MAX_MTP_LAYERS = 16
"""Published models predict one to three more tokens (DeepSeek-V3, Nemotron 3, MiMo); more than 16 is a slip of the keyboard."""

_PREFIX, _JOINED = "mtp", "mtp_joined"
_OF_MODULE = re.compile(rf"{_PREFIX}[1-9]\d*_")


def with_token_prediction(graph: ModelGraph, layers: int) -> ModelGraph:
    """The graph with so many modules before its loss; one that has them is returned as it is.

    Raises WorkloadError for a model that is no decoder of layers between an embedding and a head of the vocabulary.
    """
    if layers == 0 or mtp_layers_of(graph):
        return graph
    if layers > MAX_MTP_LAYERS:
        raise WorkloadError("too many layers predict tokens", given=layers, allowed=f"mtp_layers up to {MAX_MTP_LAYERS}")
    head, table = graph.block(graph.layers[-1]), _table(graph)
    scored = next((operator for operator in head.operators if _scores_words(operator)), None)
    inner = [graph.block(name) for name in graph.layers[1:-1]]
    sees_all = any(operator.mask is AttentionMask.FULL for block in inner for operator in block.operators)
    if table is None or scored is None or not inner or graph.edges or sees_all:
        raise WorkloadError(
            "mtp_layers are known of decoders: an embedding of tokens, causal layers one after the other, a head of words",
            given=graph.name,
            remedy="leave mtp_layers out",
        )
    owner = scored.weights[0].tied_to or f"{head.name}/{scored.name}/{scored.weights[0].name}"
    layer, stream, added = _last_layer(inner), Tensor(RESIDUAL, (BATCH, SEQ, HIDDEN)), list[Operator]()
    for number in range(1, layers + 1):
        prefix = f"{_PREFIX}{number}_"
        added += _module(prefix, stream, layer, head, table, owner)
        stream = replace(stream, name=f"{prefix}{layer.output}")
    dims = {**graph.dims, _JOINED: 2 * graph.dims[HIDDEN]}
    # The head's own operators come first: what enters the block is the stream of the last layer.
    whole = replace(head, operators=(*head.operators, *added))
    return replace(graph, dims=dims, blocks=tuple(whole if block == head else block for block in graph.blocks))


def mtp_layers_of(graph: ModelGraph) -> int:
    """The number of modules that a graph has."""
    return sum(operator.kind is OperatorKind.LOSS for operator in _added(graph.block(graph.layers[-1])))


def is_of_module(operator: Operator) -> bool:
    """Return True if an operator is one of a module, by its name."""
    return _OF_MODULE.match(operator.name) is not None


def module_operators(head: Block) -> tuple[Operator, ...]:
    """The operators of modules in the block with the head, without the scores of words."""
    return tuple(operator for operator in _added(head) if not _scores_words(operator))


def without_token_prediction(graph: ModelGraph) -> ModelGraph:
    """The graph without modules, as `with_token_prediction` was given it."""
    head = graph.block(graph.layers[-1])
    if not _added(head):
        return graph
    dims = {dim: size for dim, size in graph.dims.items() if dim != _JOINED}
    plain = replace(head, operators=tuple(operator for operator in head.operators if not is_of_module(operator)))
    return replace(graph, dims=dims, blocks=tuple(plain if block == head else block for block in graph.blocks))


def _added(head: Block) -> tuple[Operator, ...]:
    return tuple(operator for operator in head.operators if is_of_module(operator))


def _module(prefix: str, stream: Tensor, layer: Block, head: Block, table: str, owner: str) -> Iterator[Operator]:
    """Operators of one module: lookup, two norms, the product that joins them, a layer, and the head's over again."""
    stream_dims = (BATCH, SEQ, HIDDEN)
    embedded, joined = Tensor(f"{prefix}embedded", stream_dims), Tensor(f"{prefix}joined", (BATCH, SEQ, _JOINED))
    tokens, weight = Tensor("tokens", (BATCH, SEQ)), Weight("weight", (VOCAB, HIDDEN), tied_to=table)
    yield Operator(f"{prefix}embed", OperatorKind.EMBEDDING, (tokens,), (embedded,), (weight,))
    normed = []
    for name, source in (("embedded", embedded), ("stream", stream)):
        normed.append(Tensor(f"{prefix}{name}_normed", stream_dims))
        scale = (Weight("weight", (HIDDEN,)),)
        # A square, a sum and two products for each element.
        yield Operator(f"{prefix}{name}_norm", OperatorKind.NORM, (source,), (normed[-1],), scale, (source.name,), 4.0)
    yield Operator(f"{prefix}join", OperatorKind.ELEMENTWISE, tuple(normed), (joined,))
    entered = Tensor(f"{prefix}{RESIDUAL}", stream_dims)
    product = (Weight("weight", (_JOINED, HIDDEN)),)
    yield Operator(f"{prefix}joined_in", OperatorKind.MATMUL, (joined,), (entered,), product, (joined.name,))
    yield from (_renamed(operator, prefix) for operator in layer.operators)
    for operator in head.operators:
        again = _renamed(operator, prefix, {RESIDUAL: f"{prefix}{layer.output}"})
        if _scores_words(operator):
            again = replace(again, weights=(replace(again.weights[0], tied_to=owner), *again.weights[1:]))
        yield again


def _renamed(operator: Operator, prefix: str, instead: Mapping[str, str] | None = None) -> Operator:
    def name(of: str) -> str:
        return (instead or {}).get(of, f"{prefix}{of}")

    return replace(
        operator,
        name=f"{prefix}{operator.name}",
        inputs=tuple(replace(tensor, name=name(tensor.name)) for tensor in operator.inputs),
        outputs=tuple(replace(tensor, name=name(tensor.name)) for tensor in operator.outputs),
        saved=tuple(name(each) for each in operator.saved),
    )


def _last_layer(layers: Sequence[Block]) -> Block:
    """The last layer that attends, and after it the last of all where that is another.

    Of hybrids each mixer is a block; their modules have attention and the last mixer (Nemotron 3's ``*E``).
    """
    last = layers[-1]
    attending = next((block for block in reversed(layers) if _attends(block)), last)
    if attending == last:
        return last
    after = (_renamed(operator, "then_", {RESIDUAL: attending.output}) for operator in last.operators)
    return Block(_PREFIX, (*attending.operators, *after), output=f"then_{last.output}")


def _attends(block: Block) -> bool:
    return any(operator.kind is OperatorKind.ATTENTION for operator in block.operators)


def _scores_words(operator: Operator) -> bool:
    return operator.kind is OperatorKind.MATMUL and VOCAB in operator.outputs[0].dims


def _table(graph: ModelGraph) -> str | None:
    first = graph.block(graph.layers[0])
    lookups = (operator for operator in first.operators if operator.kind is OperatorKind.EMBEDDING)
    tables = ((op, weight) for op in lookups for weight in op.weights if weight.dims == (VOCAB, HIDDEN))
    return next((weight.tied_to or f"{first.name}/{op.name}/{weight.name}" for op, weight in tables), None)
