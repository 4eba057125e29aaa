"""Speculative decoding by acceptance rate: tokens that a verified step gives, and what drafting them costs.

A draft proposes k tokens of each sequence, one step of the model verifies them together with the last token, and keeps those
before the first that it rejects, and one of its own. Each proposal is kept with the same chance a, independently of the others
(Leviathan, Kalman and Matias 2023, section 3.1), so a step gives 1 to k + 1 tokens, a geometric number cut at k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.units import STRICT_RECORD, Fraction, Name, NonNegativeFloat, PositiveInt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class DraftMethod(StrEnum):
    """Where proposals come from: earlier text of the request (ngram), a layer trained with the model (mtp), a head trained for
    it (eagle, eagle3), or a smaller model."""

    NGRAM = "ngram"
    MTP = "mtp"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    DRAFT_MODEL = "draft_model"


HAS_CHECKPOINT = (DraftMethod.EAGLE, DraftMethod.EAGLE3, DraftMethod.DRAFT_MODEL)
"""Methods whose weights are not part of the model's own checkpoint."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The model or method that proposes tokens.

    relative_cost   time of proposing one token over that of a decode step of the model for the same sequences: c of Leviathan
                    et al. 2023, section 3.2; of an MTP layer about 1 / layers
    memory_bytes    its weights and cache on each device
    model           directory or name of its checkpoint, for launchers
    """

    __pydantic_config__ = STRICT_RECORD

    method: DraftMethod
    relative_cost: NonNegativeFloat
    memory_bytes: NonNegativeFloat = 0.0
    model: Name | None = None

    def __post_init__(self) -> None:
        if self.model is not None and self.method not in HAS_CHECKPOINT:
            raise WorkloadError(
                f"a draft of method {self.method.value} has no checkpoint of its own",
                given=self.model,
                allowed=", ".join(method.value for method in HAS_CHECKPOINT),
                remedy="remove speculation.draft.model",
            )


@dataclass(frozen=True, slots=True)
class Speculation:
    """``draft_tokens`` proposals a step and sequence, each kept with chance ``acceptance`` where those before it were."""

    __pydantic_config__ = STRICT_RECORD

    draft_tokens: PositiveInt
    acceptance: Fraction
    draft: Draft

    @property
    def query_tokens(self) -> int:
        """Tokens of each sequence that a step verifies: the proposals and the one before them."""
        return self.draft_tokens + 1

    @property
    def draft_steps(self) -> float:
        """Time of all proposals of a step, in decode steps of the model."""
        return self.draft_tokens * self.draft.relative_cost


def drawn_rounds(tokens: IntArray, speculation: Speculation, *, seed: int) -> IntArray:
    """Steps that give each request its ``tokens``, every step a draw from the truncated geometric law; the last one may be cut
    short. Equal seeds give equal draws."""
    generator = np.random.Generator(np.random.PCG64(seed))
    left = np.array(tokens, dtype=np.int64)
    rounds = np.zeros_like(left)
    unfinished = np.flatnonzero(left > 0)
    while len(unfinished):
        left[unfinished] -= _kept(generator.random(len(unfinished)), speculation) + 1
        rounds[unfinished] += 1
        unfinished = unfinished[left[unfinished] > 0]
    return rounds


def _kept(uniform: FloatArray, speculation: Speculation) -> IntArray:
    """Proposals kept of steps at these positions of the distribution: j or more are with chance a^j."""
    reached = speculation.acceptance ** np.arange(1, speculation.query_tokens)
    # Chances fall with j, so that those above a position come first.
    return np.asarray(np.searchsorted(-reached, -uniform, side="left"), dtype=np.int64)
