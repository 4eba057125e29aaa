"""The drafts of a row: whether tokens were drafted, how many in a step, and the chance that they are kept."""

from __future__ import annotations

from enum import StrEnum

from meshwright.app.launch_flags.serving import LaunchFlags
from meshwright.app.validation.serving.degrees import Workers
from meshwright.app.validation.serving.recipes import EngineName, Load
from meshwright.app.validation.serving.rows import AGGREGATED, ServingRun
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.problem.graph import ModelGraph


class Drafts(StrEnum):
    """The drafting of tokens: none, as the row states, or left open."""

    NONE = "none"
    STATED = "stated"
    UNKNOWN = "unknown"


WITH_DRAFT_LAYERS = ("deepseek-v3", "glm-5", "qwen3.5-397b-a17b")
"""Models whose checkpoints have layers that draft (num_nextn_predict_layers, mtp_num_hidden_layers in their configs): where a
row does not say whether they ran, it is not known. Others are not drafted for unless a row says so."""

ACCEPTANCE = {
    EngineName.TENSORRT_LLM: ((0.25, 0.6), (0.5, 0.7), (0.25, 0.8)),
    EngineName.SGLANG: ((0.25, 0.35), (0.5, 0.45), (0.25, 0.55)),
    EngineName.VLLM: ((0.25, 0.5), (0.5, 0.65), (0.25, 0.8)),
}
"""Chances, each with its weight, that a drafted token is kept where a row does not state one: a prior by engine, from public
points of DeepSeek-R1 with its MTP layer, which 0.7 fits best on TensorRT-LLM (prompts in the chat template) and 0.4 to 0.5 on
SGLang (random tokens): what these points say of drafts is in sample. No point of vLLM: between the two, and wide."""

DEFAULT_TOKENS = {EngineName.TENSORRT_LLM: 3, EngineName.SGLANG: 2, EngineName.VLLM: 1}
"""Tokens that an MTP layer drafts in a step: as published scripts say (dsr1_fp8_b200_trt_mtp.sh: MTP=3; dsr1_fp8_b200_mtp.sh:
--speculative-num-steps 2), and one in vLLM's own examples."""

LARGEST_BATCH = 64
"""Sequences of an attention group up to which TensorRT-LLM's published recipes draft three tokens, and one from there on (the
names of their files, as in gen_dep8_batch256_mtp1); with attention over all ranks always three."""

_NONE = ("none", "off", "false", "0")
_UNKNOWN = ("", "ambiguous", "unknown")


def stated_drafts(said: str, model: str) -> Drafts:
    """Return what a row's cell says of drafts for a model."""
    if said.casefold() in _NONE:
        return Drafts.NONE
    if said.casefold() in _UNKNOWN:
        return Drafts.UNKNOWN if model in WITH_DRAFT_LAYERS else Drafts.NONE
    return Drafts.STATED


def drafted(
    run: ServingRun, flags: LaunchFlags, load: Load, decode: Workers, graph: ModelGraph
) -> tuple[tuple[float, Speculation], ...]:
    """Return the drafts that a row may have had, each with its weight: one where it states the acceptance, else the prior's.

    Raises NotPredictedError for a method without a model of its cost.
    """
    method = run.speculation.casefold()
    if method not in (DraftMethod.MTP, DraftMethod.NGRAM):
        raise NotPredictedError(f"drafts whose cost is not known: {run.speculation}")
    tokens = run.draft_tokens or flags.draft_tokens or _tokens(load, decode, both_phases=run.mode == AGGREGATED)
    layers = len(graph.layers)
    of_model = 0.0 if method == DraftMethod.NGRAM else 1.0 / layers
    weights_bytes = graph.parameters() * load.precision.size_bytes * of_model / decode.devices
    draft = Draft(DraftMethod(method), relative_cost=of_model, memory_bytes=weights_bytes)
    chances = ACCEPTANCE[load.engine] if run.acceptance is None else ((1.0, run.acceptance),)
    return tuple((weight, Speculation(tokens, chance, draft)) for weight, chance in chances)


def _tokens(load: Load, decode: Workers, *, both_phases: bool) -> int:
    """Return the tokens that a layer drafts in a step where the row does not state them."""
    if load.engine is not EngineName.TENSORRT_LLM or decode.attention_dp == 1:
        return DEFAULT_TOKENS[load.engine]
    groups = decode.count * decode.attention_dp
    # Workers of both phases draft one token with attention groups (dsr1_fp8_b200_trt_mtp.sh, DP_ATTENTION: MTP=1).
    few = not both_phases and load.clients is not None and load.clients <= LARGEST_BATCH * groups
    return DEFAULT_TOKENS[load.engine] if few else 1
