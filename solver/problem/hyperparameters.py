"""Hyperparameters of a published model that change no plan, and that a launch file must still state: rotary positions, the
norms' epsilon, the router's rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.units import STRICT_RECORD, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


class RotaryScalingKind(StrEnum):
    """The rule that stretches rotary positions over longer sequences than a model was first trained on."""

    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Stretched rotary positions, in the names of a Hugging Face ``rope_scaling``.

    factor               how many times longer sequences become
    original_positions   tokens of the longest sequence before it
    low_frequency, high_frequency   ends of what llama3's rule blends (``low_freq_factor``, ``high_freq_factor``)
    mscale, mscale_all_dim          YaRN's factors on attention's scale
    """

    __pydantic_config__ = STRICT_RECORD

    kind: RotaryScalingKind
    factor: PositiveFloat | None = None
    original_positions: PositiveInt | None = None
    low_frequency: PositiveFloat | None = None
    high_frequency: PositiveFloat | None = None
    mscale: NonNegativeFloat | None = None
    mscale_all_dim: NonNegativeFloat | None = None


class RouterScore(StrEnum):
    """The function that turns a router's outputs into scores of experts."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class RouterRule:
    """The rule by which a router chooses and weighs experts.

    normalised        the weights of a token's experts sum to 1 (before ``scale``)
    scale             factor on those weights
    has_bias          a bias that balances loads takes part in the choice, not in the weights (DeepSeek-V3, section 2.1.2)
    auxiliary_loss    coefficient of the loss that balances loads; None where the model names none
    """

    __pydantic_config__ = STRICT_RECORD

    score: RouterScore
    normalised: bool
    scale: PositiveFloat = 1.0
    has_bias: bool = False
    auxiliary_loss: NonNegativeFloat | None = None


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Each None where the model's source does not say it, or says several.

    rotary_base      base of the rotary frequencies (``rope_theta``)
    rotary_share     share of a head's dimensions that turn
    rotary_scaling   rule for longer sequences
    norm_epsilon     what norms add to the variance
    router           rule of the router
    positions        tokens of the longest sequence, prompt and answer; engines take no longer one unless they are told to
    """

    __pydantic_config__ = STRICT_RECORD

    rotary_base: PositiveFloat | None = None
    rotary_share: Fraction | None = None
    rotary_scaling: RotaryScaling | None = None
    norm_epsilon: PositiveFloat | None = None
    router: RouterRule | None = None
    positions: PositiveInt | None = None
