"""The latency of a request on an engine without other requests, in closed form: no load makes it faster."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.queueing.step_times import StepTimes


def first_token_s(times: StepTimes, *, prompt_tokens: int, cached_tokens: int, step_tokens: int) -> float:
    """Time to the first token: the prompt's chunks, each of which passes all stages before the next starts."""
    done = np.arange(min(cached_tokens, prompt_tokens - 1), prompt_tokens, step_tokens)
    chunks = np.minimum(step_tokens, prompt_tokens - done)
    linear_s = times.tokens_s[:, chunks].sum() + times.logits_s[:, 1].sum() + len(chunks) * times.prefill_launch_s.sum()
    return float(linear_s + times.prefill_attention_s(chunks.astype(np.float64), done.astype(np.float64)).sum())


def token_s(times: StepTimes, *, prompt_tokens: int, output_tokens: int) -> float:
    """Time of a decode round after the first token, where each gives one: time per output token."""
    held = prompt_tokens + np.arange(1.0, output_tokens)
    attention_s = np.mean([np.interp(held, times.kv_grid, row).mean() for row in times.decode_s[:, 1]]) * times.stages
    return float(times.tokens_s[:, times.query_tokens].sum() + times.logits_s[:, 1].sum() + attention_s)
