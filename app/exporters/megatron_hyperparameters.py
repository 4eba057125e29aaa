"""Megatron-LM's words for what a model's config says beside its sizes: rotary positions, the norms' epsilon, the router's rule.

Flags and defaults are those of megatron/training/arguments.py; the router's are those of core/transformer/moe/moe_utils.py.
"""

from __future__ import annotations

from meshwright.app.exporters.command import Words, flag
from meshwright.app.exporters.shape import DecoderShape, Positions
from meshwright.solver.problem.hyperparameters import (
    Hyperparameters,
    RotaryScaling,
    RotaryScalingKind,
    RouterRule,
    RouterScore,
)

_LLAMA3 = (1.0, 4.0, 8192)
"""Ends of the blend and first length of --use-rope-scaling, which has a flag for the factor alone (core/models/common/
embeddings/rotary_pos_embedding.py)."""


def hyperparameter_words(stated: Hyperparameters | None, shape: DecoderShape) -> list[Words]:
    """Return the flags for all that is stated and has one."""
    if stated is None:
        return []
    words = [] if stated.norm_epsilon is None else [flag("norm-epsilon", f"{stated.norm_epsilon:g}")]
    if shape.positions is Positions.ROTARY:
        words += _rotary_words(stated, shape)
    if shape.mixture is not None and stated.router is not None:
        words += _router_words(stated.router)
    return words


def hyperparameter_notes(stated: Hyperparameters | None, shape: DecoderShape) -> tuple[str, ...]:
    """Return what the reader must add, since the model's source does not say it or Megatron-LM has no flag for it."""
    said = stated or Hyperparameters()
    notes = []
    if shape.positions is Positions.ROTARY:
        if _base(said) is None:
            notes.append("the request does not state one rotary base: add --rotary-base (and scaling) as the model has it")
        if said.rotary_scaling is not None and not _scaling_words(said.rotary_scaling, shape):
            notes.append(
                f"the model stretches its rotary positions ({_in_words(said.rotary_scaling)}), for which there is no flag: "
                "launched without, as models are trained before they are stretched"
            )
    if shape.mixture is not None:
        if said.router is None:
            notes.append(
                "the request holds the router's sizes, not its rule: add --moe-router-score-function and balancing as the "
                "model has them"
            )
        elif not _is_expressible(said.router, shape.mixture.top_k):
            notes.append("the router's weights of experts are scaled in a way that Megatron-LM's are not: check its rule")
        notes.append("loads of experts are taken for even")
    return tuple(notes)


def _base(stated: Hyperparameters) -> int | None:
    """The rotary base as --rotary-base takes it, a whole number."""
    base = stated.rotary_base
    return None if base is None or base != int(base) else int(base)


def _rotary_words(stated: Hyperparameters, shape: DecoderShape) -> list[Words]:
    base = _base(stated)
    words = [] if base is None else [flag("rotary-base", base)]
    if stated.rotary_share is not None and stated.rotary_share != 1 and shape.latent is None:
        words.append(flag("rotary-percent", f"{stated.rotary_share:g}"))
    return words if stated.rotary_scaling is None else words + _scaling_words(stated.rotary_scaling, shape)


def _scaling_words(scaling: RotaryScaling, shape: DecoderShape) -> list[Words]:
    """llama3's rule with its published ends, and YaRN of latent attention; none for any other."""
    factor = scaling.factor
    if factor is None:
        return []
    if shape.latent is not None and scaling.kind is RotaryScalingKind.YARN:
        words = [flag("rotary-scaling-factor", f"{factor:g}")]
        words += [] if scaling.mscale is None else [flag("mscale", f"{scaling.mscale:g}")]
        words += [] if scaling.mscale_all_dim is None else [flag("mscale-all-dim", f"{scaling.mscale_all_dim:g}")]
        return [tuple(word for words_of_one in words for word in words_of_one)]
    ends = (scaling.low_frequency, scaling.high_frequency, scaling.original_positions)
    if shape.latent is None and scaling.kind is RotaryScalingKind.LLAMA3 and ends == _LLAMA3:
        return [(*flag("use-rope-scaling"), *flag("rope-scaling-factor", f"{factor:g}"))]
    return []


def _in_words(scaling: RotaryScaling) -> str:
    return scaling.kind.value if scaling.factor is None else f"{scaling.kind.value}, {scaling.factor:g} times"


def _router_words(rule: RouterRule) -> list[Words]:
    words = [flag("moe-router-score-function", rule.score.value)]
    before = rule.score is RouterScore.SOFTMAX and not rule.normalised
    words += [flag("moe-router-pre-softmax")] if before else []
    if rule.scale != 1 and (before or rule.score is RouterScore.SIGMOID):
        words.append(flag("moe-router-topk-scaling-factor", f"{rule.scale:g}"))
    if rule.has_bias and rule.score is RouterScore.SIGMOID:
        words.append(flag("moe-router-enable-expert-bias"))
    elif rule.auxiliary_loss:
        words.append(flag("moe-aux-loss-coeff", f"{rule.auxiliary_loss:g}"))
    return words


def _is_expressible(rule: RouterRule, top_k: int) -> bool:
    """Return True if Megatron-LM weighs experts so: a softmax over the chosen has no factor, sigmoids are weighed anew."""
    if rule.score is RouterScore.SOFTMAX:
        return not rule.normalised or rule.scale == 1
    return rule.normalised or top_k == 1
