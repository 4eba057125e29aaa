"""Speculative decoding by acceptance rate: tokens that a verified step gives, and what drafting them costs.

A draft proposes k tokens of each sequence, one step of the model verifies them together with the last token, and keeps those
before the first that it rejects, and one of its own. Each proposal is kept with the same chance a, independently of the others
(Leviathan, Kalman and Matias 2023, section 3.1), so a step gives 1 to k + 1 tokens, a geometric number cut at k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.step_times import StepTimes
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


# Step times of ranks that share the tokens of prompts and repeat those of answers (SGLang, prefill context parallelism).
#
# SGLang splits a step over cp ranks only where every sequence in it has 2 cp tokens or more (zigzag
# strategy): a step of decoding sequences is run by each of them whole, and so is one that mixes
# them with prompts. Prompts and answers therefore go apart.


def with_repeated_answers(prompts: StepTimes, answers: StepTimes) -> StepTimes:
    """Times of steps that hold either prompts, which take those of ``prompts``, or decoding sequences, those of ``answers``.

    A step of n sequences has n tokens: what it takes more or less than as many tokens of a prompt is put to its attention. Of
    steps that hold both nothing is said.
    """
    sequences = np.minimum(np.arange(prompts.max_sequences + 1), prompts.max_tokens)
    more_s = answers.tokens_s[:, sequences] - prompts.tokens_s[:, sequences]
    return replace(prompts, logits_s=answers.logits_s, decode_s=answers.decode_s + more_s[:, :, None])


# Step times of an engine that verifies drafted tokens, from those of the same engine without a draft.


def speculative_times(plain: StepTimes, verifying: StepTimes, speculation: Speculation) -> StepTimes:
    """Times of steps in which each decoding sequence drafts, and has its k + 1 tokens verified.

    ``plain`` are tables of one token a sequence, ``verifying`` the same with attention of k + 1 tokens over each cache; both up
    to k + 1 times the sequences of the result. Products, experts and collectives see k + 1 tokens a sequence, and so does the
    vocabulary head; drafting takes its share of a plain decode step of these sequences, k times.
    """
    tokens = speculation.query_tokens
    sequences = np.arange(plain.max_sequences // tokens + 1)
    fixed_s = plain.tokens_s[:, np.minimum(sequences, plain.max_tokens)] + plain.logits_s[:, sequences]
    drafting_s = speculation.draft_steps * (fixed_s[:, :, None] + plain.decode_s[:, sequences])
    drafting_s[:, 0] = 0.0
    return replace(
        verifying,
        logits_s=verifying.logits_s[:, sequences * tokens],
        decode_s=verifying.decode_s[:, sequences] + drafting_s,
        query_tokens=tokens,
    )
