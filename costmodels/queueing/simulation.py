"""Discrete-event simulation of continuous batching on one serving replica.

A step holds one token of every decoding sequence and, within the token limit, chunks of prompts in order of arrival
(Sarathi-Serve, OSDI'24); with prefill-first scheduling a step holds either whole prompts or decoding sequences (Orca,
OSDI'22, and the first vLLM). A pipeline of p stages keeps p batches ("slots") in flight, each sequence staying in its slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from costmodels.errors import WorkloadError
from costmodels.queueing.engine_state import new_lists, new_requests, new_slots
from costmodels.queueing.event_loop import run
from costmodels.queueing.load import RequestStream
from costmodels.queueing.statistics import Percentile, percentile
from costmodels.queueing.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    CHUNKED,
    PREFILL_ONLY,
    WHOLE,
    Limits,
    Promise,
    Tables,
)
from costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]


class Scheduling(StrEnum):
    """What a step of the engine holds.

    chunked_prefill   decode first: a token of every decoding sequence, and prompts in chunks in what is left
    whole_prompts     decode first too, but only prompts that fit whole in what is left (TensorRT-LLM without chunked context)
    prefill_first     whole prompts as long as any wait, else a token of every decoding sequence
    """

    CHUNKED_PREFILL = "chunked_prefill"
    WHOLE_PROMPTS = "whole_prompts"
    PREFILL_FIRST = "prefill_first"


_SCHEDULING_CODES = {
    Scheduling.CHUNKED_PREFILL: CHUNKED,
    Scheduling.WHOLE_PROMPTS: WHOLE,
    Scheduling.PREFILL_FIRST: PREFILL_ONLY,
}


class Admission(StrEnum):
    """When a waiting request may start.

    reserve   when the cache has room for its prompt and all its output (TensorRT-LLM, GUARANTEED_NO_EVICT)
    preempt   when the cache has room for its prompt; when the cache is full, the newest request is evicted and its tokens
              are computed again later (vLLM, recompute)
    """

    RESERVE = "reserve"
    PREEMPT = "preempt"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a replica's engine: sequences at once, tokens in a step, tokens that the KV cache holds."""

    sequences: int
    step_tokens: int
    kv_tokens: int
    scheduling: Scheduling = Scheduling.CHUNKED_PREFILL
    admission: Admission = Admission.RESERVE


@dataclass(frozen=True, slots=True)
class Targets:
    """P95 targets; a simulation ends early once its 95th percentile is sure to miss one of them."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Window:
    """Which requests are counted: those after a warm-up share, up to a cool-down share at the end."""

    warm_up: float = 0.10
    cool_down: float = 0.05

    def measured(self, requests: int) -> tuple[int, int]:
        """First and one past the last counted request."""
        return int(requests * self.warm_up), requests - int(requests * self.cool_down)


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What the counted requests saw, and how busy the engine was.

    missed         the run ended early: a P95 target is missed, percentiles are those of the requests seen until then
    ttft_s         time to first token of each counted request, in order of arrival, queueing included
    tpot_s         (last token - first token) / (output tokens - 1), of those with more than one output token
    answered_s     when the last token came
    busy           share of time that the busiest stage works
    mean_batch     sequences that are decoding, averaged over time
    mean_waiting   requests waiting for admission, averaged over time
    peak_running   most requests running at once
    evictions      how often a request was evicted
    """

    missed: bool
    ttft_s: FloatArray
    tpot_s: FloatArray
    end_to_end_s: FloatArray
    answered_s: FloatArray
    duration_s: float
    busy: float
    mean_batch: float
    mean_waiting: float
    peak_running: int
    steps: int
    evictions: int

    def ttft(self, probability: float) -> Percentile:
        """Percentile of the time to first token."""
        return percentile(self.ttft_s, probability)

    def tpot(self, probability: float) -> Percentile:
        """Percentile of the time per output token."""
        return percentile(self.tpot_s, probability)


NO_TARGETS = Targets()
MIDDLE = Window()


def simulate(
    times: StepTimes, stream: RequestStream, limits: BatchLimits, *, targets: Targets = NO_TARGETS, window: Window = MIDDLE
) -> SimulationResult:
    """Requests of the stream through one replica, arriving as the stream says.

    Raises WorkloadError when the engine could never run a request (longer than the cache or, unless prompts are chunked,
    than a step).
    """
    return _simulate(times, stream, limits, targets, window, known=len(stream))


def simulate_closed_loop(
    times: StepTimes, stream: RequestStream, limits: BatchLimits, *, concurrency: int, window: Window = MIDDLE
) -> SimulationResult:
    """As ``simulate``, with ``concurrency`` clients that send their next request as soon as the last is answered (how
    public benchmarks measure); arrival times of the stream are not used."""
    arrival_s = np.full(len(stream), np.inf)
    arrival_s[:concurrency] = 0.0
    closed = RequestStream(arrival_s, stream.prompt_tokens, stream.output_tokens)
    return _simulate(times, closed, limits, NO_TARGETS, window, known=min(concurrency, len(stream)))


def _simulate(
    times: StepTimes, stream: RequestStream, limits: BatchLimits, targets: Targets, window: Window, *, known: int
) -> SimulationResult:
    _require_runnable(times, stream, limits)
    per_slot = -(-limits.sequences // times.stages)
    requests = new_requests(stream.arrival_s, stream.prompt_tokens, stream.output_tokens)
    first, end = window.measured(len(stream))
    counted_tpot = int(np.count_nonzero(stream.output_tokens[first:end] > 1))
    outcome = run(
        Tables(
            times.tokens_s,
            times.logits_s,
            times.decode_s,
            times.kv_grid,
            times.prefill_s_per_pair,
            times.query_grid,
            times.prefix_grid,
            times.prefill_launch_s,
        ),
        Limits(
            per_slot,
            limits.step_tokens,
            limits.kv_tokens,
            _SCHEDULING_CODES[limits.scheduling],
            ADMIT_RESERVED if limits.admission is Admission.RESERVE else ADMIT_UNTIL_FULL,
        ),
        Promise(first, end, targets.ttft_s, targets.tpot_s, _may_miss(end - first), _may_miss(counted_tpot)),
        requests,
        new_slots(times.stages),
        new_lists(times.stages, sequences=per_slot, max_output=int(stream.output_tokens.max())),
        known,
    )
    return _result(requests["arrival_s"], requests["first_s"], requests["last_s"], stream, outcome, first, end)


def _may_miss(counted: int) -> int:
    """How many of the counted requests may be over the target while the 95th percentile is not."""
    return counted - math.ceil(0.95 * counted)


def _result(
    arrival_s: FloatArray,
    first_s: FloatArray,
    last_s: FloatArray,
    stream: RequestStream,
    outcome: tuple[bool, float, float, float, int, int, int],
    first: int,
    end: int,
) -> SimulationResult:
    missed, duration_s, busy_s, waiting_s, peak_running, steps, evictions = outcome
    assert math.isfinite(duration_s), "requests wait that nothing can start"
    counted = np.zeros(len(stream), dtype=np.bool_)
    counted[first:end] = True
    started = counted & np.isfinite(first_s)
    ended = counted & np.isfinite(last_s)
    several = ended & (stream.output_tokens > 1)
    # Requests still decoding at the end of the run count until then; those without a first token are nan and do not count.
    decoding_s = np.nansum(np.where(np.isfinite(last_s), np.minimum(last_s, duration_s), duration_s) - first_s)
    return SimulationResult(
        missed=missed,
        ttft_s=first_s[started] - arrival_s[started],
        tpot_s=(last_s[several] - first_s[several]) / (stream.output_tokens[several] - 1),
        end_to_end_s=last_s[ended] - arrival_s[ended],
        answered_s=last_s[ended],
        duration_s=duration_s,
        busy=busy_s / duration_s,
        mean_batch=float(decoding_s) / duration_s,
        mean_waiting=waiting_s / duration_s,
        peak_running=peak_running,
        steps=steps,
        evictions=evictions,
    )


def _require_runnable(times: StepTimes, stream: RequestStream, limits: BatchLimits) -> None:
    longest = int((stream.prompt_tokens + stream.output_tokens).max())
    if longest > limits.kv_tokens:
        raise WorkloadError(
            "the KV cache can't hold the longest request", given=longest, allowed=f"at most {limits.kv_tokens} tokens"
        )
    # An evicted request comes back with the tokens it has generated.
    whole = longest if limits.admission is Admission.PREEMPT else int(stream.prompt_tokens.max())
    if limits.scheduling is not Scheduling.CHUNKED_PREFILL and whole > limits.step_tokens:
        raise WorkloadError(
            "without chunks a prompt must fit in one step", given=whole, allowed=f"at most {limits.step_tokens} tokens"
        )
    per_slot = -(-limits.sequences // times.stages)
    if limits.sequences < 1 or per_slot > min(limits.step_tokens, times.max_sequences):
        raise WorkloadError(
            "impossible limit of sequences at once",
            given=limits.sequences,
            allowed=f"1 to {times.stages * min(limits.step_tokens, times.max_sequences)}",
        )
    if limits.step_tokens > times.max_tokens:
        raise WorkloadError(
            "step times are not known for so many tokens", given=limits.step_tokens, allowed=f"at most {times.max_tokens}"
        )
