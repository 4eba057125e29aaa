"""The sizes and habits of a decoder, read back from its graph: what launchers ask for by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    EXPERT_GROUPS,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    KV_RANK,
    Q_RANK,
    QK_HEAD_DIM,
    QK_NOPE_DIM,
    QK_ROPE_DIM,
    SEQ,
    SHARED_FFN,
    TOP_GROUPS,
    TOP_K,
    V_HEAD_DIM,
    VOCAB,
)
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.problem.launchers.trainers import GptLayers, LlamaLayers
from meshwright.solver.problem.token_prediction import mtp_layers_of, without_token_prediction

EXPERT_DIMS = frozenset({EXPERTS, TOP_K, EXPERT_FFN, SHARED_FFN})
LATENT_DIMS = frozenset({KV_RANK, Q_RANK, QK_NOPE_DIM, QK_ROPE_DIM, V_HEAD_DIM, QK_HEAD_DIM})
_KNOWN_DIMS = frozenset({BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN}) | EXPERT_DIMS | LATENT_DIMS


class FeedForward(StrEnum):
    """The feed-forward network's shape and function, told from its matrices and FLOPs."""

    SWIGLU = "swiglu"
    GEGLU = "geglu"
    GELU = "gelu"
    SQUARED_RELU = "squared_relu"
    RELU = "relu"


class Positions(StrEnum):
    """The way in which positions enter the model."""

    ROTARY = "rotary"
    LEARNED = "learned"
    ELSEWHERE = "elsewhere"


class Norm(StrEnum):
    """The normalisation of the residual stream."""

    RMS = "rms"
    LAYER = "layer"


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """Experts of the layers that have them, and which layers do.

    ``shared_ffn`` is the width of the expert that every token meets, if there is one; ``shared_gate`` whether a learned gate
    scales it; ``in_layer`` says for each decoder layer whether it has experts. A token's experts are in ``top_groups`` of the
    ``groups`` that experts lie in.
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int | None
    shared_gate: bool
    in_layer: tuple[bool, ...]
    groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Ranks and head sizes of multi-head latent attention; ``q_rank`` is None where queries are not compressed."""

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder-only transformer. ``oddities`` are sentences on what its layers do that a standard decoder does not."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gate: FeedForward
    positions: Positions
    n_positions: int | None
    norm: Norm
    qk_norm: bool
    qkv_bias: bool
    linear_bias: bool
    tied: bool
    window: int | None
    oddities: tuple[str, ...]
    mixture: MixtureShape | None = None
    latent: LatentShape | None = None
    mtp_layers: int = 0


def decoder_shape(graph: ModelGraph) -> DecoderShape:
    """The shape of a decoder, dense or with experts; raises ExportError for a graph that is something else."""
    mtp_layers, graph = mtp_layers_of(graph), without_token_prediction(graph)
    used = [graph.block(name) for name in dict.fromkeys(graph.layers)]
    layers = [block for block in used if is_layer(block)]
    _require_decoder(graph, layers)
    first = layers[0]
    mixture = _mixture_shape(graph, [block for name in graph.layers if is_layer(block := graph.block(name))])
    latent = _latent_shape(graph, first)
    norms = [op for op in _of_kind(first, OperatorKind.NORM) if HIDDEN in _weight_dims(op)]
    biases = {weight.dims for op in _of_kind(first, OperatorKind.MATMUL) for weight in op.weights}
    positions, n_positions = _positions(graph, first)
    windows = {op.window for block in layers for op in _of_kind(block, OperatorKind.ATTENTION)}
    return DecoderShape(
        layers=sum(1 for name in graph.layers if is_layer(graph.block(name))),
        hidden=graph.dims[HIDDEN],
        heads=graph.dims[HEADS],
        kv_heads=graph.dims[HEADS] if latent else graph.dims[KV_HEADS],
        head_dim=latent.nope_dim + latent.rope_dim if latent else graph.dims[HEAD_DIM],
        ffn=graph.dims[FFN],
        vocab=graph.dims[VOCAB],
        gate=_gate(first),
        positions=positions,
        n_positions=n_positions,
        norm=Norm.LAYER if any(len(op.weights) == 2 for op in norms) else Norm.RMS,
        qk_norm=any(HEAD_DIM in _weight_dims(op) for op in _of_kind(first, OperatorKind.NORM)),
        qkv_bias=(HEADS, HEAD_DIM) in biases,
        linear_bias=(HIDDEN,) in biases,
        tied=bool(graph.tied_weights()),
        window=next(iter(windows)) if len(windows) == 1 else None,
        oddities=(*_layer_oddities(layers, norms, windows, mixture), *_end_oddities(used)),
        mixture=mixture,
        latent=latent,
        mtp_layers=mtp_layers,
    )


def unlike(graph: ModelGraph, layers: LlamaLayers | GptLayers) -> tuple[str, ...]:
    """Return in words what a model has that decoders of these layers have not; nothing of one of them, nor of a graph of the
    user's own that is no decoder: what its operators are, its export asks."""
    try:
        shape = decoder_shape(graph)
    except ExportError as error:
        if graph.hyperparameters is None:
            return ()
        return (error.problem if error.given is None else str(error.given),)
    if isinstance(layers, GptLayers):
        uneven = shape.mixture is not None and not all(shape.mixture.in_layer) and not layers.uneven_experts
        gpt = (("latent attention", shape.latent is not None), ("experts in some layers and not in others", uneven))
        return tuple(said for said, is_so in gpt if is_so)
    share = None if graph.hyperparameters is None else graph.hyperparameters.rotary_share
    found = (
        ("experts", shape.mixture is not None),
        ("latent attention", shape.latent is not None),
        (f"a feed-forward network of {shape.gate.value}", shape.gate is not FeedForward.SWIGLU),
        ("norms of mean and variance", shape.norm is not Norm.RMS),
        (f"{shape.positions.value} positions", shape.positions is not Positions.ROTARY),
        ("rotary positions of a share of each head", share not in (None, 1.0)),
        ("biases of all matrices", shape.linear_bias),
        ("biases of q, k and v", shape.qkv_bias and not layers.qkv_bias),
        ("norms of heads", shape.qk_norm and not layers.qk_norm),
        ("heads of a width of their own", shape.heads * shape.head_dim != shape.hidden and not layers.own_head_width),
        (f"a window of {shape.window} tokens", shape.window is not None),
        *((oddity, True) for oddity in shape.oddities),
    )
    return tuple(said for said, is_so in found if is_so)


def is_layer(block: Block) -> bool:
    """Return True if a block is a layer, not the embedding or the head."""
    return not any(op.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS) for op in block.operators)


def _require_decoder(graph: ModelGraph, layers: list[Block]) -> None:
    remedy = "launch it with your own code: axes, stages and shardings stand in the plan"
    strange = sorted({dim for block in layers for op in block.operators for dim in op.dims} - _KNOWN_DIMS)
    if strange:
        raise ExportError(
            "exporters know decoders of attention and feed-forward networks or experts",
            given=f"layers with the dims {', '.join(strange)}",
            remedy=remedy,
        )
    plain = set() if KV_RANK in graph.dims else {KV_HEADS, HEAD_DIM}
    missing = sorted(({HIDDEN, HEADS, FFN, VOCAB} | plain) - set(graph.dims))
    attention = [op for block in layers for op in _of_kind(block, OperatorKind.ATTENTION)]
    if missing or not layers or any(not _of_kind(block, OperatorKind.ATTENTION) for block in layers):
        names = ", ".join(block.name for block in layers) or "none"
        given = f"no dims {', '.join(missing)}" if missing else f"layers: {names}"
        raise ExportError("launchers build layers of attention and feed-forward network", given=given, remedy=remedy)
    if any(op.mask is not AttentionMask.CAUSAL for op in attention):
        raise ExportError("exporters know decoders, whose attention is causal", given=graph.name, remedy=remedy)


def _of_kind(block: Block, kind: OperatorKind) -> list[Operator]:
    return [operator for operator in block.operators if operator.kind is kind]


def _weight_dims(operator: Operator) -> set[str]:
    return {dim for weight in operator.weights for dim in weight.dims}


def _gate(layer: Block) -> FeedForward:
    """Gated networks have two inputs to their activation function; FLOPs an element tell SiLU (4), ReLU (1) and its
    square (2) from GELU (5 to 9), one more where the gate is multiplied in."""
    functions = [
        op for op in _of_kind(layer, OperatorKind.ELEMENTWISE) if all({FFN, EXPERT_FFN} & set(t.dims) for t in op.inputs)
    ]
    if not functions:
        raise ExportError("launchers build feed-forward networks with an activation function", given=layer.name)
    function = functions[0]
    if len(function.inputs) == 2:
        return FeedForward.SWIGLU if function.flops_per_element <= 5 else FeedForward.GEGLU
    return {1.0: FeedForward.RELU, 2.0: FeedForward.SQUARED_RELU}.get(function.flops_per_element, FeedForward.GELU)


def _positions(graph: ModelGraph, layer: Block) -> tuple[Positions, int | None]:
    turned = {KV_HEADS, QK_ROPE_DIM}
    rotary = [op for op in _of_kind(layer, OperatorKind.ELEMENTWISE) if any(turned & set(t.dims) for t in op.inputs)]
    if rotary:
        return Positions.ROTARY, None
    for block in graph.blocks:
        for operator in _of_kind(block, OperatorKind.EMBEDDING):
            tables = [weight.dims[0] for weight in operator.weights if weight.dims[0] != VOCAB]
            if tables:
                return Positions.LEARNED, graph.dims[tables[0]]
    return Positions.ELSEWHERE, None


def _end_oddities(used: list[Block]) -> list[str]:
    """Steps beside table, norm, head and loss: a normed embedding, or one of another width."""
    plain = (OperatorKind.EMBEDDING, OperatorKind.LOSS)
    extra = [
        f"{block.name}/{op.name}"
        for block in used
        if not is_layer(block)
        for op in block.operators
        if op.kind not in plain and not (op.kind is OperatorKind.NORM and _of_kind(block, OperatorKind.LOSS))
        if not any(VOCAB in weight.dims for weight in op.weights)
    ]
    return [f"steps of the model's ends that a standard one has not: {', '.join(extra)}"] if extra else []


def _layer_oddities(
    layers: list[Block], norms: list[Operator], windows: set[int | None], mixture: MixtureShape | None
) -> list[str]:
    found = []
    first = layers[0]
    written = {tensor.name for operator in first.operators for tensor in operator.outputs}
    at_entry = [op for op in norms if op.inputs[0].name not in written]
    if len(norms) > 2:
        found.append(f"a layer has {len(norms)} norms, a standard one has two")
    elif len(norms) < 2 or len(at_entry) == 2:
        found.append("attention and feed-forward network of a layer run side by side, not one after the other")
    elif not at_entry:
        found.append("norms come after attention and feed-forward network, not before")
    if len(windows) > 1:
        listed = ", ".join("full" if window is None else str(window) for window in sorted(windows, key=lambda w: w or 0))
        found.append(f"layers differ in their attention window ({listed})")
    elif len(layers) > (1 if mixture is None or all(mixture.in_layer) else 2):
        found.append(f"layers are of {len(layers)} kinds ({', '.join(block.name for block in layers)})")
    return found


# Experts and latent attention.


def _mixture_shape(graph: ModelGraph, layers: Sequence[Block]) -> MixtureShape | None:
    """Experts of a model with these decoder layers, in order of the model; None for a dense one."""
    in_layer = tuple(_touches(block, EXPERTS) for block in layers)
    if not any(in_layer):
        return None
    mixed = next(block for block, has in zip(layers, in_layer, strict=True) if has)
    missing = sorted({EXPERTS, TOP_K, EXPERT_FFN} - set(graph.dims))
    if missing:
        raise ExportError("experts need a number, a choice and a width", given=f"no dims {', '.join(missing)}")
    return MixtureShape(
        experts=graph.dims[EXPERTS],
        top_k=graph.dims[TOP_K],
        ffn=graph.dims[EXPERT_FFN],
        shared_ffn=graph.dims[SHARED_FFN] if _touches(mixed, SHARED_FFN) else None,
        shared_gate=any(operator.name == "shared_gate" for operator in mixed.operators),
        in_layer=in_layer,
        groups=graph.dims.get(EXPERT_GROUPS, 1),
        top_groups=graph.dims.get(TOP_GROUPS, 1),
    )


def _latent_shape(graph: ModelGraph, layer: Block) -> LatentShape | None:
    """Latent attention of a layer; None where keys and values are projected directly."""
    if not _touches(layer, KV_RANK):
        return None
    dims = graph.dims
    return LatentShape(
        q_rank=dims[Q_RANK] if _touches(layer, Q_RANK) else None,
        kv_rank=dims[KV_RANK],
        nope_dim=dims[QK_NOPE_DIM],
        rope_dim=dims[QK_ROPE_DIM],
        v_dim=dims[V_HEAD_DIM],
    )


def _touches(block: Block, dim: str) -> bool:
    return any(dim in operator.dims for operator in block.operators)
