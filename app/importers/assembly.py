"""Assembly: an Architecture as a ModelGraph, with equal layers folded into runs of one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from meshwright.app.importers.architecture import Architecture, Branch, EncoderDecoder, Joining, Layer, NormPlace
from meshwright.app.importers.bodies.cross_attention import ENCODED
from meshwright.app.importers.ends import TOKEN_TABLE, embedding_block, head_block, shared_embedding_block
from meshwright.app.importers.parts import activation, norm, residual_add
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.operators import Operator, Tensor
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
