"""Assembly: an Architecture as a ModelGraph, with equal layers folded into runs of one block."""

from __future__ import annotations

from itertools import groupby

from app.importers.architecture import (
    Architecture,
    Branch,
    Embedding,
    Head,
    Joining,
    Layer,
    NormPlace,
    Tie,
)
from app.importers.parts import (
    HIDDEN,
    VOCAB,
    Bias,
    activation,
    norm,
    projection,
    residual_add,
)
from costmodels.operators import BATCH, SEQ, Operator, OperatorKind, Tensor, Weight
from solver.graph import RESIDUAL, Block, BlockRun, ModelGraph

TOKEN_TABLE = "embedding/embed/weight"
"""The weight that tied heads share."""

# Softmax: maximum, subtraction, exponential, sum, division (survey section 5.1).
_SOFTMAX_FLOPS = 5.0


def assemble(name: str, architecture: Architecture) -> ModelGraph:
    """The graph: blocks ``embedding``, one for each distinct layer, ``head``; runs of equal layers folded."""
    names = _layer_names(architecture.layers)
    layer_blocks = tuple(_layer_block(names[layer], layer, architecture) for layer in names)
    runs = tuple(BlockRun(names[layer], repeat=len(list(group))) for layer, group in groupby(architecture.layers))
    return ModelGraph(
        name=name,
        dims=dict(architecture.dims),
        blocks=(
            _embedding_block(architecture.embedding),
            *layer_blocks,
            _head_block(architecture.head),
        ),
        chain=(BlockRun("embedding"), *runs, BlockRun("head")),
    )


def _layer_names(layers: tuple[Layer, ...]) -> dict[Layer, str]:
    """Block name of each distinct layer: ``layer`` and the tags in which the layers of the model differ."""
    distinct = list(dict.fromkeys(layers))
    tags = [[branch.body.tag for branch in layer.branches] for layer in distinct]
    width = max(len(row) for row in tags)
    columns = [{row[i] if i < len(row) else "" for row in tags} for i in range(width)]
    names: dict[Layer, str] = {}
    for layer, row in zip(distinct, tags, strict=True):
        words = [tag for i, tag in enumerate(row) if len(columns[i]) > 1]
        name = "_".join(["layer", *words])
        same = sum(1 for taken in names.values() if taken == name or taken.startswith(f"{name}_v"))
        names[layer] = name if same == 0 else f"{name}_v{same + 1}"
    return names


def _embedding_block(embedding: Embedding) -> Block:
    tables = [Weight("weight", (VOCAB, embedding.width))]
    if embedding.position_dim is not None:
        tables.append(Weight("positions", (embedding.position_dim, HIDDEN)))
    tokens = Tensor("tokens", (BATCH, SEQ))
    steps = [
        Operator(
            "embed",
            OperatorKind.EMBEDDING,
            inputs=(tokens,),
            outputs=(activation("embedded", embedding.width),),
            weights=tuple(tables),
        )
    ]
    if embedding.width != HIDDEN:
        steps.append(
            projection(
                "project_in",
                source=steps[-1].outputs[0],
                outputs=(activation("projected", HIDDEN),),
                suffixes=("_in",),
                bias=Bias.NONE,
            )
        )
    if embedding.norm is not None:
        steps.append(
            norm(
                "embed_norm",
                embedding.norm,
                source=steps[-1].outputs[0],
                target="embed_normed",
            )
        )
    return Block("embedding", tuple(steps), output=steps[-1].outputs[0].name)


def _layer_block(name: str, layer: Layer, architecture: Architecture) -> Block:
    entry = stream = activation(RESIDUAL, HIDDEN)
    shared = entry
    steps: list[Operator] = []
    for branch in layer.branches:
        branch_input = entry if layer.joining is Joining.PARALLEL else stream
        if branch.place is not NormPlace.SHARED:
            shared = _normed_input(branch, branch_input, steps)
        steps += branch.body.operators(shared, architecture.dims)
        stream = _joined(branch, stream, steps)
    return Block(name, tuple(steps), output=stream.name)


def _normed_input(branch: Branch, source: Tensor, steps: list[Operator]) -> Tensor:
    if branch.place not in (NormPlace.BEFORE, NormPlace.BOTH):
        return source
    steps.append(
        norm(
            f"{branch.name}_norm",
            branch.norm,
            source=source,
            target=f"{branch.name}_normed",
        )
    )
    return steps[-1].outputs[0]


def _joined(branch: Branch, stream: Tensor, steps: list[Operator]) -> Tensor:
    """Append what comes after the body: the norm of its output, the residual add, the norm of the sum."""
    name = branch.name
    out = steps[-1].outputs[0]
    if branch.place in (NormPlace.AFTER, NormPlace.BOTH):
        steps.append(
            norm(
                f"{name}_post_norm",
                branch.norm,
                source=out,
                target=f"{name}_post_normed",
            )
        )
        out = steps[-1].outputs[0]
    steps.append(residual_add(f"{name}_residual", stream=stream, branch=out, target=f"{name}_sum"))
    if branch.place is NormPlace.ON_SUM:
        steps.append(
            norm(
                f"{name}_norm",
                branch.norm,
                source=steps[-1].outputs[0],
                target=f"{name}_normed",
            )
        )
    return steps[-1].outputs[0]


def _head_block(head: Head) -> Block:
    stream = activation(RESIDUAL, HIDDEN)
    steps: list[Operator] = []
    if head.norm is not None:
        steps.append(norm("final_norm", head.norm, source=stream, target="final_normed"))
        stream = steps[-1].outputs[0]
    if head.width != HIDDEN:
        narrowed = activation("narrowed", head.width)
        steps.append(
            projection(
                "project_out",
                source=stream,
                outputs=(narrowed,),
                suffixes=("_out",),
                bias=Bias.NONE,
            )
        )
        stream = narrowed
    steps += [_lm_head(head, stream), _loss()]
    return Block("head", tuple(steps), output="loss")


def _lm_head(head: Head, source: Tensor) -> Operator:
    tied_to = TOKEN_TABLE if head.tie is Tie.TIED else None
    bias = (Weight("bias", (VOCAB,)),) if head.bias is Bias.ADDED else ()
    return Operator(
        "lm_head",
        OperatorKind.MATMUL,
        inputs=(source,),
        outputs=(activation("logits", VOCAB),),
        weights=(Weight("weight", (head.width, VOCAB), tied_to=tied_to), *bias),
        saved=(source.name,),
    )


def _loss() -> Operator:
    """Cross entropy; keeps the logits, from which the backward pass computes the softmax again."""
    return Operator(
        "loss",
        OperatorKind.LOSS,
        inputs=(activation("logits", VOCAB),),
        outputs=(activation("loss"),),
        saved=("logits",),
        flops_per_element=_SOFTMAX_FLOPS,
    )
