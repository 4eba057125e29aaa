"""Experts and latent attention of a decoder, read back from its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.model.dims import (
    EXPERT_FFN,
    EXPERT_GROUPS,
    EXPERTS,
    KV_RANK,
    Q_RANK,
    QK_HEAD_DIM,
    QK_NOPE_DIM,
    QK_ROPE_DIM,
    SHARED_FFN,
    TOP_GROUPS,
    TOP_K,
    V_HEAD_DIM,
)
from meshwright.solver.problem.graph import Block, ModelGraph

EXPERT_DIMS = frozenset({EXPERTS, TOP_K, EXPERT_FFN, SHARED_FFN})
LATENT_DIMS = frozenset({KV_RANK, Q_RANK, QK_NOPE_DIM, QK_ROPE_DIM, V_HEAD_DIM, QK_HEAD_DIM})


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


def mixture_shape(graph: ModelGraph, layers: Sequence[Block]) -> MixtureShape | None:
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


def latent_shape(graph: ModelGraph, layer: Block) -> LatentShape | None:
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
