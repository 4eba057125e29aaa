"""Step times of an engine that verifies drafted tokens, from those of the same engine without a draft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costmodels.queueing.step_times import StepTimes
from meshwright.costmodels.serving.speculation import Speculation


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
