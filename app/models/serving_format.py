"""The formats of published checkpoints: what of a model they store narrow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshwright.app.models.catalog import model_document, model_names
from meshwright.app.models.checkpoint import checkpoint_format
from meshwright.costmodels.model.dims import EXPERT_FFN
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import ModelGraph

CHECKPOINTS: Mapping[tuple[str, DType], tuple[DType, WeightFormat | None, Quantised]] = {
    ("deepseek-v3", DType.FP8): (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS),
    ("qwen3-235b-a22b", DType.FP8): (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS),
    ("qwen3-235b-a22b", DType.FP4): (DType.FP4, None, Quantised.PROJECTIONS),
    ("minimax-m2.5", DType.FP8): (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS),
    ("glm-5", DType.FP8): (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS),
    ("qwen3.5-397b-a17b", DType.FP8): (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS),
    ("deepseek-v3", DType.FP4): (DType.FP4, WeightFormat.NVFP4, Quantised.FEED_FORWARD_AND_OUTPUT),
    **{
        (name, said): (DType.FP4, WeightFormat.MXFP4, Quantised.FEED_FORWARD)
        for name in ("gpt-oss-120b", "gpt-oss-20b")
        for said in (DType.FP4, DType.FP8)
    },
}
"""The weights that published checkpoints store narrow, where it is not every projection with one scale. The keys are what the
row says of them. Sources: their own quantization_config (deepseek-ai/DeepSeek-V3, Qwen/Qwen3-235B-A22B-FP8,
MiniMaxAI/MiniMax-M2.5, openai/gpt-oss, which has no other than MXFP4; of GLM-5-FP8 and Qwen3.5-397B-A17B-FP8 from memory, as
their makers do), and the model card of nvidia/DeepSeek-R1-0528-FP4-v2, which the published scripts of its fp4 runs name: of
attention only the output projection is narrow."""


@cache
def own_precision(model: str) -> DType | None:
    """Return the precision of a catalogue model's checkpoint as its makers publish it; None where it is not quantised, or the
    catalogue has no such model."""
    stored = checkpoint_format(model_document(model)) if model in model_names() else None
    return None if stored is None else stored.precision


def checkpoint(model: str, graph: ModelGraph, precision: DType) -> tuple[DType, WeightFormat | None, Quantised]:
    """Return format, kind of scales and narrow weights of the checkpoint of a model that a row says a precision of.

    Where it is not one of those above: of mixtures of experts in fp4 only the feed-forward layers
    (nvidia's NVFP4 checkpoints of Kimi-K2.5, Qwen3.5, GLM-5 and MiniMax-M2.5 leave attention wide), else every projection.
    """
    if (model, precision) in CHECKPOINTS:
        return CHECKPOINTS[model, precision]
    if precision is DType.FP4 and EXPERT_FFN in graph.dims:
        return precision, WeightFormat.NVFP4, Quantised.FEED_FORWARD
    return precision, None, Quantised.PROJECTIONS
