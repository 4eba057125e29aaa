"""Assembly: an Architecture as a ModelGraph, with equal layers folded into runs of one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from meshwright.app.models.architecture import (
    Architecture,
    AudioEmbedding,
    Bias,
    Branch,
    ClassHead,
    Embedding,
    EncoderDecoder,
    Head,
    Joining,
    Layer,
    NormPlace,
    PatchEmbedding,
    Tie,
    Transform,
    activation,
    norm,
    projection,
    residual_add,
)
from meshwright.app.models.bodies.attention import ENCODED
from meshwright.app.models.bodies.mlp import activation_operator
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ, VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.solver.problem.graph import RESIDUAL, Block, BlockRun, ModelGraph


def assemble(name: str, architecture: Architecture | EncoderDecoder) -> ModelGraph:
    """The graph: blocks ``embedding``, one for each distinct layer, ``head``; runs of equal layers folded."""
    if isinstance(architecture, EncoderDecoder):
        return _two_stacks(name, architecture)
    stack = _fold("layer", architecture.layers, architecture.dims)
    embedding = embedding_block(architecture.embedding)
    chain = (BlockRun("embedding"), *stack.runs, BlockRun("head"))
    return ModelGraph(
        name=name,
        dims=dict(architecture.dims),
        blocks=(embedding, *stack.blocks, head_block(architecture.head)),
        chain=chain,
        edges=_edges_of_readers(embedding, stack, chain),
    )


def _edges_of_readers(embedding: Block, stack: _Stack, chain: tuple[BlockRun, ...]) -> tuple[tuple[int, int], ...]:
    """Edges where layers read the embedding besides the stream; none where they are a chain."""
    readers = {block.name for block in stack.blocks if _reads(block, embedding.output)}
    if not readers:
        return ()
    line = {(i, i + 1) for i in range(len(chain) - 1)}
    return tuple(sorted(line | {(0, i) for i, run in enumerate(chain) if run.block in readers}))


def _reads(block: Block, tensor: str) -> bool:
    return any(read.name == tensor for operator in block.operators for read in operator.inputs)


def _two_stacks(name: str, architecture: EncoderDecoder) -> ModelGraph:
    """Encoder, its norm, and a decoder whose every layer also depends on that norm: not a chain."""
    encoder = _fold("encoder", architecture.encoder, architecture.dims)
    decoder = _fold("decoder", architecture.decoder, architecture.dims)
    encoder_end = norm("encoder_norm", architecture.norm, source=activation(RESIDUAL, HIDDEN), target=ENCODED)
    chain = (
        BlockRun("embedding"),
        *encoder.runs,
        BlockRun("encoder_end"),
        BlockRun("decoder_embedding"),
        *decoder.runs,
        BlockRun("head"),
    )
    end = 1 + len(encoder.runs)
    first, last = end + 2, end + 1 + len(decoder.runs)
    if architecture.target is None:
        second, table = shared_embedding_block("decoder_embedding"), TOKEN_TABLE
    else:
        second, table = embedding_block(architecture.target, name="decoder_embedding"), "decoder_embedding/embed/weight"
    inside = [(i, i + 1) for i in range(len(chain) - 1) if i != end]
    from_encoder = [(end, i) for i in range(first, last + 1)]
    return ModelGraph(
        name=name,
        dims=dict(architecture.dims),
        blocks=(
            embedding_block(architecture.source),
            *encoder.blocks,
            Block("encoder_end", (encoder_end,), output=ENCODED),
            second,
            *decoder.blocks,
            head_block(architecture.head, table=table),
        ),
        chain=chain,
        edges=tuple(sorted(inside + from_encoder)),
    )


@dataclass(frozen=True, slots=True)
class _Stack:
    blocks: tuple[Block, ...]
    runs: tuple[BlockRun, ...]


def _fold(stem: str, layers: tuple[Layer, ...], dims: Mapping[str, int]) -> _Stack:
    names = _layer_names(stem, layers)
    return _Stack(
        blocks=tuple(_layer_block(names[layer], layer, dims) for layer in names),
        runs=tuple(BlockRun(names[layer], repeat=len(list(group))) for layer, group in groupby(layers)),
    )


def _layer_names(stem: str, layers: tuple[Layer, ...]) -> dict[Layer, str]:
    """Block name of each distinct layer: the stem and the tags in which the layers differ."""
    distinct = list(dict.fromkeys(layers))
    tags = [[branch.body.tag for branch in layer.branches] for layer in distinct]
    width = max(len(row) for row in tags)
    columns = [{row[i] if i < len(row) else "" for row in tags} for i in range(width)]
    names: dict[Layer, str] = {}
    for layer, row in zip(distinct, tags, strict=True):
        words = [tag for i, tag in enumerate(row) if len(columns[i]) > 1]
        name = "_".join([stem, *words])
        same = sum(1 for taken in names.values() if taken == name or taken.startswith(f"{name}_v"))
        names[layer] = name if same == 0 else f"{name}_v{same + 1}"
    return names


def _layer_block(name: str, layer: Layer, dims: Mapping[str, int]) -> Block:
    entry = stream = activation(RESIDUAL, HIDDEN)
    shared = entry
    steps: list[Operator] = []
    for branch in layer.branches:
        branch_input = entry if layer.joining is Joining.PARALLEL else stream
        if branch.place is not NormPlace.SHARED:
            shared = _normed_input(branch, branch_input, steps)
        steps += branch.body.operators(shared, dims)
        stream = _joined(branch, stream, steps)
    return Block(name, tuple(steps), output=stream.name)


def _normed_input(branch: Branch, source: Tensor, steps: list[Operator]) -> Tensor:
    if branch.place not in (NormPlace.BEFORE, NormPlace.BOTH):
        return source
    steps.append(norm(f"{branch.name}_norm", branch.norm, source=source, target=f"{branch.name}_normed"))
    return steps[-1].outputs[0]


def _joined(branch: Branch, stream: Tensor, steps: list[Operator]) -> Tensor:
    """Append what comes after the body: the norm of its output, the residual add, the norm of the sum."""
    name = branch.name
    out = steps[-1].outputs[0]
    if branch.place in (NormPlace.AFTER, NormPlace.BOTH):
        steps.append(norm(f"{name}_post_norm", branch.norm, source=out, target=f"{name}_post_normed"))
        out = steps[-1].outputs[0]
    steps.append(residual_add(f"{name}_residual", stream=stream, branch=out, target=f"{name}_sum"))
    if branch.place is NormPlace.ON_SUM:
        steps.append(norm(f"{name}_norm", branch.norm, source=steps[-1].outputs[0], target=f"{name}_normed"))
    return steps[-1].outputs[0]


# First and last blocks of a model: embeddings and heads.

TOKEN_TABLE = "embedding/embed/weight"
"""The weight that tied heads share, unless the decoder has a table of its own."""

# Softmax: maximum, subtraction, exponential, sum, division (survey section 5.1).
_SOFTMAX_FLOPS = 5.0


def embedding_block(embedding: Embedding | PatchEmbedding | AudioEmbedding, *, name: str = "embedding") -> Block:
    """First block of a stack: lookup of tokens, projection of patches or convolution of frames, and what is added to them."""
    if isinstance(embedding, AudioEmbedding):
        return _audio_block(embedding, name)
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
    return Block(name, tuple(steps), output=steps[-1].outputs[0].name)


def shared_embedding_block(name: str) -> Block:
    """Embedding of a second stack with the table of the first."""
    table = Weight("weight", (VOCAB, HIDDEN), tied_to=TOKEN_TABLE)
    return Block(name, (_lookup((table,), target=activation("embedded", HIDDEN)),), output="embedded")


def head_block(head: Head | ClassHead, *, table: str = TOKEN_TABLE) -> Block:
    """Block ``head``: final norm, vocabulary head or classifier, and the loss; a tied head shares ``table``."""
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
    steps += [_lm_head(head, stream, width, table), _loss(activation("logits", VOCAB))]
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


def _audio_block(embedding: AudioEmbedding, name: str) -> Block:
    """Convolutions with activation functions; ``seq`` counts what the second leaves."""
    kernel, width = embedding.kernel_dim, embedding.width_dim
    frames = activation("frames", embedding.stride_dim, embedding.frame_dim)
    wide, narrow = activation("conv1_out", embedding.stride_dim, width), activation("conv2_out", HIDDEN)
    wide_act, narrow_act = Tensor("conv1_act_out", wide.dims), Tensor("conv2_act_out", narrow.dims)
    add = Operator(
        "embed",
        OperatorKind.EMBEDDING,
        inputs=(narrow_act,),
        outputs=(activation("embedded", HIDDEN),),
        weights=(Weight("positions", (embedding.position_dim, HIDDEN)),),
    )
    steps = (
        _convolution("conv1", frames, wide, (embedding.frame_dim, kernel, width)),
        activation_operator("conv1_act", embedding.function, inputs=(wide,), target=wide_act),
        _convolution("conv2", wide_act, narrow, (width, kernel, HIDDEN)),
        activation_operator("conv2_act", embedding.function, inputs=(narrow,), target=narrow_act),
        add,
    )
    return Block(name, steps, output="embedded")


def _convolution(name: str, source: Tensor, target: Tensor, kernel: tuple[str, ...]) -> Operator:
    weights = (Weight("kernel", kernel), Weight("bias", kernel[-1:]))
    return Operator(name, OperatorKind.CONVOLUTION, (source,), (target,), weights, saved=(source.name,))


def _class_block(head: ClassHead) -> Block:
    stream, steps = activation(RESIDUAL, HIDDEN), []
    if head.norm is not None:
        steps.append(norm("final_norm", head.norm, source=stream, target="final_normed"))
        stream = steps[-1].outputs[0]
    steps.append(Operator("pool", OperatorKind.ELEMENTWISE, inputs=(stream,), outputs=(Tensor("pooled", (BATCH, HIDDEN)),)))
    if head.transform is not None:
        steps += _transform(head.transform, steps[-1].outputs[0])
    if head.dim is not None:
        pooled, logits = steps[-1].outputs[0], Tensor("logits", (BATCH, head.dim))
        steps.append(projection("classify", source=pooled, outputs=(logits,), suffixes=("_class",), bias=head.bias))
    return Block("head", (*steps, _loss(steps[-1].outputs[0])), output="loss")


def _transform(transform: Transform, source: Tensor) -> list[Operator]:
    rows = source.dims[:-1]
    dense, activated = (Tensor(name, (*rows, transform.dim)) for name in ("transformed", "transform_act"))
    steps = [
        projection("transform", source=source, outputs=(dense,), suffixes=("_transform",), bias=transform.bias),
        activation_operator("transform_act", transform.function, inputs=(dense,), target=activated),
    ]
    if transform.norm is not None:
        over = (transform.dim,)
        steps.append(norm("transform_norm", transform.norm, source=activated, target="transform_normed", over=over))
    return steps


def _lm_head(head: Head, source: Tensor, width: str, table: str) -> Operator:
    tied_to = table if head.tie is Tie.TIED else None
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
