"""First and last blocks of a model: embeddings and heads."""

from __future__ import annotations

from app.importers.architecture import ClassHead, Embedding, Head, PatchEmbedding, Tie, Transform
from app.importers.bodies.mlp import activation_operator
from app.importers.parts import HIDDEN, VOCAB, Bias, activation, norm, projection
from costmodels.operators import BATCH, SEQ, Operator, OperatorKind, Tensor, Weight
from solver.graph import RESIDUAL, Block

TOKEN_TABLE = "embedding/embed/weight"
"""The weight that tied heads share."""

# Softmax: maximum, subtraction, exponential, sum, division (survey section 5.1).
_SOFTMAX_FLOPS = 5.0


def embedding_block(embedding: Embedding | PatchEmbedding) -> Block:
    """Block ``embedding``: lookup of tokens, or projection of patches, and what is added to them."""
    if isinstance(embedding, PatchEmbedding):
        return _patch_block(embedding)
    tables = [Weight("weight", (VOCAB, embedding.width))]
    if embedding.position_dim is not None:
        tables.append(Weight("positions", (embedding.position_dim, HIDDEN)))
    if embedding.type_dim is not None:
        tables.append(Weight("token_types", (embedding.type_dim, HIDDEN)))
    steps = [_lookup(tuple(tables), target=activation("embedded", embedding.width))]
    if embedding.width != HIDDEN:
        widened = activation("projected", HIDDEN)
        source = steps[-1].outputs[0]
        steps.append(projection("project_in", source=source, outputs=(widened,), suffixes=("_in",), bias=Bias.NONE))
    if embedding.norm is not None:
        steps.append(norm("embed_norm", embedding.norm, source=steps[-1].outputs[0], target="embed_normed"))
    return Block("embedding", tuple(steps), output=steps[-1].outputs[0].name)


def shared_embedding_block(name: str) -> Block:
    """Embedding of a second stack with the table of the first."""
    table = Weight("weight", (VOCAB, HIDDEN), tied_to=TOKEN_TABLE)
    return Block(name, (_lookup((table,), target=activation("embedded", HIDDEN)),), output="embedded")


def head_block(head: Head | ClassHead) -> Block:
    """Block ``head``: final norm, vocabulary head or classifier, and the loss."""
    if isinstance(head, ClassHead):
        return _class_block(head)
    stream = activation(RESIDUAL, HIDDEN)
    steps: list[Operator] = []
    if head.norm is not None:
        steps.append(norm("final_norm", head.norm, source=stream, target="final_normed"))
        stream = steps[-1].outputs[0]
    width = head.width
    if width != HIDDEN:
        narrowed = activation("narrowed", width)
        steps.append(projection("project_out", source=stream, outputs=(narrowed,), suffixes=("_out",), bias=Bias.NONE))
        stream = narrowed
    if head.transform is not None:
        steps += _transform(head.transform, stream)
        stream, width = steps[-1].outputs[0], head.transform.dim
    steps += [_lm_head(head, stream, width), _loss(activation("logits", VOCAB))]
    return Block("head", tuple(steps), output="loss")


def _lookup(tables: tuple[Weight, ...], *, target: Tensor) -> Operator:
    tokens = Tensor("tokens", (BATCH, SEQ))
    return Operator("embed", OperatorKind.EMBEDDING, inputs=(tokens,), outputs=(target,), weights=tables)


def _patch_block(embedding: PatchEmbedding) -> Block:
    """Patches do not overlap, so their convolution is a matrix product; ``seq`` counts patches and the class token."""
    patches, projected = activation("patches", embedding.patch_dim), activation("projected", HIDDEN)
    project = projection("patch_proj", source=patches, outputs=(projected,), suffixes=("_patch",), bias=Bias.ADDED)
    add = Operator(
        "embed",
        OperatorKind.EMBEDDING,
        inputs=(projected,),
        outputs=(activation("embedded", HIDDEN),),
        weights=(Weight("class_token", (HIDDEN,)), Weight("positions", (embedding.position_dim, HIDDEN))),
    )
    return Block("embedding", (project, add), output="embedded")


def _class_block(head: ClassHead) -> Block:
    stream = activation(RESIDUAL, HIDDEN)
    final_norm = norm("final_norm", head.norm, source=stream, target="final_normed")
    pooled, logits = Tensor("pooled", (BATCH, HIDDEN)), Tensor("logits", (BATCH, VOCAB))
    pool = Operator("pool", OperatorKind.ELEMENTWISE, inputs=final_norm.outputs, outputs=(pooled,))
    classify = projection("classify", source=pooled, outputs=(logits,), suffixes=("_class",), bias=Bias.ADDED)
    return Block("head", (final_norm, pool, classify, _loss(logits)), output="loss")


def _transform(transform: Transform, source: Tensor) -> list[Operator]:
    dense, activated = activation("transformed", transform.dim), activation("transform_act", transform.dim)
    return [
        projection("transform", source=source, outputs=(dense,), suffixes=("_transform",), bias=Bias.ADDED),
        activation_operator("transform_act", transform.function, inputs=(dense,), target=activated),
        norm("transform_norm", transform.norm, source=activated, target="transform_normed", over=(transform.dim,)),
    ]


def _lm_head(head: Head, source: Tensor, width: str) -> Operator:
    tied_to = TOKEN_TABLE if head.tie is Tie.TIED else None
    bias = (Weight("bias", (VOCAB,)),) if head.bias is Bias.ADDED else ()
    return Operator(
        "lm_head",
        OperatorKind.MATMUL,
        inputs=(source,),
        outputs=(activation("logits", VOCAB),),
        weights=(Weight("weight", (width, VOCAB), tied_to=tied_to), *bias),
        saved=(source.name,),
    )


def _loss(logits: Tensor) -> Operator:
    """Cross entropy; keeps the logits, from which the backward pass computes the softmax again."""
    return Operator(
        "loss",
        OperatorKind.LOSS,
        inputs=(logits,),
        outputs=(Tensor("loss", logits.dims[:-1]),),
        saved=(logits.name,),
        flops_per_element=_SOFTMAX_FLOPS,
    )
