"""Times of an engine's steps by sequences that decode and prompt tokens: what its queues need to know whatever the load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.analytic.prompt_queue import PromptSteps
from meshwright.costmodels.queueing.load import LONGEST, Load, TokenCount
from meshwright.costmodels.queueing.simulation.replica import BatchLimits
from meshwright.costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]

_PROMPTS = 128
"""Equally likely prompts that stand for a distribution."""

_ROUNDS = 8
"""Equally likely numbers of rounds that stand for a distribution."""

_BATCHES = 16
"""Batch sizes at which steps are timed; linear between."""

_CELLS_OF_A_STEP = 4
"""Cells of prompt tokens that a step has room for, where prompts are not shorter."""

_CELLS_OF_A_PROMPT = 16.0
"""Cells of a prompt that takes many steps."""

_MOST_CELLS_OF_A_STEP = 24
"""Cells that a step is let take: more short prompts than that never wait together, unless cells are larger anyway."""

_PROMPTS_OF_A_CELL = 8.0
"""A full engine's step finds no more cells than that, on average."""


@dataclass(frozen=True, eq=False)
class StepCurves:
    """Steps of an engine under one kind of requests.

    sequences        [i] sequences that decode, all stages together, ascending from 0
    step_s           [i, c] time between the starts of two steps of c cells of prompt tokens; the last fills the step
    room             [i] cells that fill it
    kv_token_s       [i] what a token more in the cache of each sequence adds to a step without prompts
    prompt           [c] share of prompts that have c cells
    prompt_spread    mean square and mean cube of a prompt's work over those of the mean
    rounds           [k] equally likely decode rounds of a request
    stages           steps in flight at once
    through          time that a step with prompts takes through all stages, over that at the slowest
    prefill_first    whether prompts keep sequences from decoding
    """

    sequences: FloatArray
    step_s: FloatArray
    room: FloatArray
    kv_token_s: FloatArray
    prompt: FloatArray
    prompt_spread: tuple[float, float]
    rounds: FloatArray
    stages: int
    through: float
    prefill_first: bool

    def at(self, sequences: float, *, idle: float = 0.0) -> PromptSteps:
        """Steps while so many sequences decode; ``idle`` as in PromptSteps."""
        i = min(max(int(np.searchsorted(self.sequences, sequences, side="right")) - 1, 0), len(self.sequences) - 2)
        part = (sequences - self.sequences[i]) / (self.sequences[i + 1] - self.sequences[i])
        step_s = self.step_s[i] * (1.0 - part) + self.step_s[i + 1] * part
        room = float(self.room[i] * (1.0 - part) + self.room[i + 1] * part)
        drained_s = 0.0
        mean = float(np.dot(self.prompt, np.arange(len(self.prompt))))
        if self.stages > 1:
            drained_s = (self.stages - 1) * float(step_s[min(len(step_s) - 1, max(1, round(mean)))])
        return PromptSteps(step_s, room, self.prompt, drained_s, self.through, math.ceil(mean / room - 1e-6) - 1, idle)

    def decode_s(self, sequences: FloatArray) -> FloatArray:
        """[i] time of a round of so many sequences without prompts."""
        return np.asarray(self.stages * np.interp(sequences, self.sequences, self.step_s[:, 0]))


def step_curves(times: StepTimes, load: Load, limits: BatchLimits, *, places: float) -> StepCurves:
    """The curves of an engine that runs up to ``places`` sequences at once."""
    tokens = _equally_likely(load.prompt, _PROMPTS)
    cached = np.minimum(np.floor(tokens * load.cached_share), tokens - 1.0)
    rounds = np.maximum(0.0, _equally_likely(load.output, _ROUNDS) - 1.0)
    held = float(np.mean(tokens))
    if rounds.sum() > 0.0:
        held += float(np.sum(rounds * (rounds + 1.0) / 2.0) / np.sum(rounds))
    work = tokens - cached
    pairs_s = _attention_s(times, tokens, cached, limits.step_tokens)
    each_s = float(pairs_s.mean() / work.mean())
    batches = np.concatenate([[0.0], np.unique(np.rint(np.geomspace(1.0, max(2.0, places), _BATCHES)))])
    per_slot = np.where(batches > 0.0, np.maximum(1.0, batches / times.stages), 0.0)
    decode_s = times.decode_step_s(per_slot, held).max(axis=0)
    longer_s = times.decode_step_s(per_slot, 1.1 * held).max(axis=0)
    decode_s[0] = longer_s[0] = 0.0
    prefill_first = limits.scheduling.prompts_apart
    taken = np.zeros_like(per_slot) if prefill_first else per_slot * times.query_tokens
    room = np.maximum(1.0, limits.step_tokens - taken)
    # All places answer one request in its rounds; what prompts take is left out, so that no cell is too small.
    answered_of_a_step = places / float(np.mean(rounds)) if rounds.sum() > 0.0 else 0.0
    cell = _cell_tokens(float(work.mean()), limits.step_tokens, answered_of_a_step)
    cells = max(1, min(_MOST_CELLS_OF_A_STEP, math.ceil(float(room[0]) / cell)))
    filled = np.minimum(np.arange(cells + 1.0) * cell, room[:, None])
    beside = np.zeros_like(per_slot) if prefill_first else per_slot
    prompts_s, slowest = _prompt_steps(times, beside, filled[:, 1:], held, each_s, float(work.mean()))
    # A prompt's attention grows faster than its tokens: it counts for as many tokens as take that time.
    token_s = max(1e-12, float(prompts_s[0, -1] - prompts_s[0, 0]) / max(1.0, float(filled[0, -1] - filled[0, 1])) - each_s)
    counted = np.maximum(0.5, work + (pairs_s - each_s * work) / (token_s + each_s))
    relative = counted / counted.mean()
    return StepCurves(
        sequences=batches,
        step_s=np.concatenate([decode_s[:, None], prompts_s], axis=1),
        room=np.minimum(room / cell, float(cells)),
        kv_token_s=(longer_s - decode_s) / (0.1 * held),
        prompt=_histogram(counted / cell),
        prompt_spread=(float(np.mean(relative**2)), float(np.mean(relative**3))),
        rounds=rounds if rounds.sum() > 0.0 else np.zeros(0),
        stages=times.stages,
        through=slowest,
        prefill_first=prefill_first,
    )


def _equally_likely(count: TokenCount, values: int) -> FloatArray:
    if count.is_fixed:
        return np.array([float(np.rint(count.mean)) if not count.values else float(count.values[0])])
    quantiles = np.minimum((np.arange(_PROMPTS) + 0.5) / _PROMPTS, LONGEST)
    return np.asarray(count.quantile(quantiles).reshape(values, -1).mean(axis=1))


def _attention_s(times: StepTimes, tokens: FloatArray, cached: FloatArray, step_tokens: int) -> FloatArray:
    """[i] time at the slowest stage for the attention of prompts, in chunks of a step."""
    total, done = np.zeros_like(tokens), cached.copy()
    while np.any(done < tokens):
        left = np.flatnonzero(done < tokens)
        chunk = np.minimum(tokens[left] - done[left], step_tokens)
        total[left] += times.prefill_attention_s(chunk, done[left]).max(axis=0)
        done[left] += chunk
    return total


def _cell_tokens(work: float, step_tokens: int, prompts_of_a_step: float) -> float:
    """Tokens of a cell: a whole part of a mean prompt where few arrive within a step, so that equal prompts stay equal; of
    prompts that take several steps, a step, or more where these are many."""
    if work > 2.0 * step_tokens:
        return max(float(step_tokens), work / _CELLS_OF_A_PROMPT)
    parts = math.ceil(work / (step_tokens / _CELLS_OF_A_STEP))
    return max(1.0, work / parts, prompts_of_a_step * work / _PROMPTS_OF_A_CELL)


def _prompt_steps(
    times: StepTimes, beside: FloatArray, prompt_tokens: FloatArray, held: float, each_s: float, work: float
) -> tuple[FloatArray, float]:
    """[i, c] time at the slowest stage of steps with prompt_tokens[i, c] beside decoding sequences, and that through all stages
    over it; ``each_s`` is the attention of a prompt token."""
    n = np.repeat(np.rint(beside).astype(np.int64), prompt_tokens.shape[1])
    taken = prompt_tokens.ravel()
    tokens = np.clip(
        np.rint(beside[:, None] * times.query_tokens + prompt_tokens).astype(np.int64), 0, times.max_tokens
    ).ravel()
    finishing = np.rint(np.maximum(1.0, taken / work)).astype(np.int64)
    logits_s = times.logits_s[:, np.minimum(n + finishing, times.max_sequences)]
    decode_s = times.decode_step_s(beside, held) - _without_attention(times, beside)
    step_s = (
        times.tokens_s[:, np.minimum(tokens, times.max_tokens)] + logits_s + np.repeat(decode_s, prompt_tokens.shape[1], axis=1)
    )
    step_s = np.maximum(step_s + times.prefill_launch_s[:, None] + each_s * taken, times.least_prompt_s[:, None])
    slowest_s = step_s.max(axis=0)
    return slowest_s.reshape(prompt_tokens.shape), float((step_s.sum(axis=0) / slowest_s).mean())


def _without_attention(times: StepTimes, sequences: FloatArray) -> FloatArray:
    n = np.rint(sequences).astype(np.int64)
    return np.asarray(times.tokens_s[:, np.minimum(n * times.query_tokens, times.max_tokens)] + times.logits_s[:, n])


def _histogram(cells: FloatArray) -> FloatArray:
    """[c] share of prompts of c cells, each shared by its two neighbours so that the mean is kept."""
    low = cells.astype(np.int64)
    part = cells - low
    size = int(low.max()) + 2
    found = np.bincount(low, 1.0 - part, size) + np.bincount(low + 1, part, size)
    return np.asarray(found / len(cells))


# The latency of a request on an engine without other requests, in closed form: no load makes it faster.


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
