"""Step times simple enough to compute by hand."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.queueing.step_times import StepTimes


def linear_times(
    *,
    fixed_s: float = 0.0,
    token_s: float = 0.0,
    kv_token_s: float = 0.0,
    pair_s: float = 0.0,
    logit_s: float = 0.0,
    least_prompt_s: float = 0.0,
    stages: int = 1,
    max_tokens: int = 8192,
    max_sequences: int = 64,
) -> StepTimes:
    """A step of t tokens takes fixed_s + t token_s + (tokens in the caches) kv_token_s + (prefill pairs) pair_s
    + (sequences that get a token) logit_s, least_prompt_s or more where it has prompt tokens, shared evenly by the stages; an
    empty step takes nothing."""
    tokens = np.arange(max_tokens + 1)
    sequences = np.arange(max_sequences + 1)
    kv_grid = np.array([1.0, 1e6])
    tokens_s = (fixed_s + token_s * tokens) * (tokens > 0)
    return StepTimes(
        tokens_s=np.tile(tokens_s / stages, (stages, 1)),
        logits_s=np.tile(logit_s * sequences / stages, (stages, 1)),
        decode_s=np.tile(kv_token_s * sequences[:, None] * kv_grid / stages, (stages, 1, 1)),
        kv_grid=kv_grid,
        prefill_s_per_pair=np.full((stages, 2, 2), pair_s / stages),
        query_grid=np.array([1.0, float(max_tokens)]),
        prefix_grid=np.array([0.0, 1e6]),
        prefill_launch_s=np.zeros(stages),
        least_prompt_s=np.full(stages, least_prompt_s / stages),
    )
