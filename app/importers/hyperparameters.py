"""Hyperparameters of a config.json: what changes no plan, and what launch files hand on.

Nothing here refuses a file: a field that is missing, ill-typed or given for each kind of layer apart is not stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.solver.problem.hyperparameters import (
    Hyperparameters,
    RotaryScaling,
    RotaryScalingKind,
    RouterRule,
    RouterScore,
)

_BASES = ("rope_theta", "rotary_emb_base")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
_SECOND_BASES = ("rope_local_base_freq",)
"""A second base, of the layers with a window: one base would then be wrong for some."""

_ALWAYS_NORMALISED = frozenset({"mixtral", "gpt_oss"})
"""Kinds whose router takes a softmax over the chosen experts alone (transformers 5.23, modeling_mixtral, modeling_gpt_oss)."""
_SOFTMAX = frozenset({"qwen2_moe", "qwen3_moe", "deepseek_v2", "olmoe"})
"""Kinds whose router takes a softmax over all experts; ``norm_topk_prob`` says whether the chosen ones are weighed anew."""


def read_hyperparameters(document: Mapping[str, Any]) -> Hyperparameters | None:
    """The hyperparameters that the file states of rotary positions, norms and router; None where it states nothing."""
    rotary = _rotary(document)
    read = Hyperparameters(
        rotary_base=_number(rotary, _BASES),
        rotary_share=_share(rotary),
        rotary_scaling=_scaling(document, rotary),
        norm_epsilon=_number(document, _EPSILONS),
        router=_router(document),
    )
    return None if read == Hyperparameters() else read


def _rotary(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of rotary positions: of the file, or of its ``rope_parameters``; none where kinds of layers differ in them."""
    if any(document.get(name) is not None for name in _SECOND_BASES):
        return {}
    nested = document.get("rope_parameters")
    if not isinstance(nested, Mapping):
        return document
    return {} if any(isinstance(value, Mapping) for value in nested.values()) else {**document, **nested}


def _share(rotary: Mapping[str, Any]) -> float | None:
    share = _number(rotary, _SHARES)
    return share if share is not None and share <= 1 else None


def _scaling(document: Mapping[str, Any], rotary: Mapping[str, Any]) -> RotaryScaling | None:
    given = document.get("rope_scaling") if rotary is document else rotary
    if not isinstance(given, Mapping):
        return None
    kind = given.get("rope_type", given.get("type"))
    if kind not in {known.value for known in RotaryScalingKind}:
        return None
    positions = given.get("original_max_position_embeddings")
    return RotaryScaling(
        kind=RotaryScalingKind(kind),
        factor=_number(given, ("factor",)),
        original_positions=positions if isinstance(positions, int) and positions > 0 else None,
        low_frequency=_number(given, ("low_freq_factor",)),
        high_frequency=_number(given, ("high_freq_factor",)),
        mscale=_number(given, ("mscale",)),
        mscale_all_dim=_number(given, ("mscale_all_dim",)),
    )


def _router(document: Mapping[str, Any]) -> RouterRule | None:
    kind, score = document.get("model_type"), document.get("scoring_func")
    if score is None and kind in _ALWAYS_NORMALISED | _SOFTMAX:
        score = RouterScore.SOFTMAX.value
    if score not in {known.value for known in RouterScore}:
        return None
    loss = document.get("router_aux_loss_coef")
    return RouterRule(
        score=RouterScore(score),
        normalised=kind in _ALWAYS_NORMALISED or document.get("norm_topk_prob") is True,
        scale=_number(document, ("routed_scaling_factor",)) or 1.0,
        has_bias=document.get("topk_method") == "noaux_tc" or document.get("use_routing_bias") is True,
        auxiliary_loss=float(loss) if isinstance(loss, int | float) and not isinstance(loss, bool) and loss >= 0 else None,
    )


def _number(document: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these fields that is a positive number."""
    for name in names:
        value = document.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
    return None
