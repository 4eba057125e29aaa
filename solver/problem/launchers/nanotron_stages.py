"""The stages that nanotron cuts a model in by itself, from estimates of what its blocks cost (trainer.py, build_model)."""

from __future__ import annotations

from meshwright.costmodels.model.dims import FFN, HEAD_DIM, HEADS, HIDDEN, VOCAB
from meshwright.solver.problem.graph import ModelGraph


def layers_of_stages(*, layers: int, hidden: int, heads_width: int, ffn: int, vocab: int, pp: int) -> tuple[int, ...] | None:
    """Return the decoder layers of each of ``pp`` stages, embedding on the first and head on the last; None where a stage would
    have nothing, or the head would not be on the last one.

    A layer counts its attention as four square matrices and its network as three, the head its matrix, the embedding nothing
    (models/qwen.py, get_block_compute_costs). The block with which a stage passes its share is the stage's last.
    """
    layer = 4 * heads_width * hidden + 3 * ffn * hidden
    whole = layers * layer + vocab * hidden
    counts = [0] * pp
    stage, passed = 0, 0
    for _ in range(layers):
        counts[stage] += 1
        passed += layer
        if passed * pp > whole * (stage + 1):
            stage += 1
    return tuple(counts) if stage == pp - 1 else None


def borders(model: ModelGraph, pp: int) -> tuple[int, ...] | None:
    """Return the first layer of each stage and the end, ends of the model counted; None where it finds no ``pp`` stages."""
    dims = model.dims
    if not {HIDDEN, HEADS, HEAD_DIM, FFN, VOCAB} <= set(dims) or len(model.layers) < pp + 2:
        return None
    counts = layers_of_stages(
        layers=len(model.layers) - 2,
        hidden=dims[HIDDEN],
        heads_width=dims[HEADS] * dims[HEAD_DIM],
        ffn=dims[FFN],
        vocab=dims[VOCAB],
        pp=pp,
    )
    if counts is None:
        return None
    ends = [1 + sum(counts[: stage + 1]) for stage in range(pp - 1)]
    return (0, *ends, len(model.layers))
