"""Discrete-event simulation of continuous batching on one serving replica.

A step holds one token of every decoding sequence and, within the token limit, chunks of prompts in order of arrival
(Sarathi-Serve, OSDI'24); with prefill-first scheduling a step holds either prompts or decoding sequences (Orca, OSDI'22,
and the first vLLM). A pipeline of p stages keeps p batches ("slots") in flight, each sequence staying in its slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from statistics import fmean

import numpy as np
import numpy.typing as npt

from costmodels.errors import WorkloadError
from costmodels.queueing.engine_state import IntArray, RecordArray, new_lists, new_requests, new_slots, new_stages
from costmodels.queueing.event_loop import run
from costmodels.queueing.load import RequestStream
from costmodels.queueing.promises import Promise
from costmodels.queueing.statistics import Percentile, percentile
from costmodels.queueing.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    CHUNKED,
    CHUNKS_ONLY,
    PREFILL_ONLY,
    WHOLE,
    Limits,
    Tables,
)
from costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Scheduling(StrEnum):
    """What a step of the engine holds.

    chunked_prefill   decode first: a token of every decoding sequence, and prompts in chunks in what is left
    whole_prompts     decode first too, but only prompts that fit whole in what is left (TensorRT-LLM without chunked context)
    prefill_first     whole prompts as long as any wait, else a token of every decoding sequence
    chunks_first      the same with prompts in chunks (SGLang without --enable-mixed-chunk)
    """

    CHUNKED_PREFILL = "chunked_prefill"
    WHOLE_PROMPTS = "whole_prompts"
    PREFILL_FIRST = "prefill_first"
    CHUNKS_FIRST = "chunks_first"

    @property
    def prompts_apart(self) -> bool:
        """Whether no step holds both prompts and decoding sequences."""
        return self in (Scheduling.PREFILL_FIRST, Scheduling.CHUNKS_FIRST)

    @property
    def cuts_prompts(self) -> bool:
        """Whether prompts come in chunks."""
        return self in (Scheduling.CHUNKED_PREFILL, Scheduling.CHUNKS_FIRST)


_SCHEDULING_CODES = {
    Scheduling.CHUNKED_PREFILL: CHUNKED,
    Scheduling.WHOLE_PROMPTS: WHOLE,
    Scheduling.PREFILL_FIRST: PREFILL_ONLY,
    Scheduling.CHUNKS_FIRST: CHUNKS_ONLY,
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
class RequestTimes:
    """When each request arrived, got its first token and its last, in order of arrival; nan for what did not happen.

    ``counted`` requests make the percentiles; ``busy_s`` is how long the busiest stage had worked until the first token.
    """

    arrival_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    output_tokens: IntArray
    counted: BoolArray
    busy_s: FloatArray


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What the counted requests saw, and how busy the engine was.

    requests       times of all requests, counted or not
    missed         the run ended early: a P95 target is missed, percentiles are those of the requests seen until then
    busy           share of time that the busiest stage works
    worked_s       how long a mean stage worked; of replicas that ran side by side all together
    mean_batch     sequences that are decoding, averaged over time
    mean_waiting   requests waiting for admission, averaged over time
    peak_running   most requests running at once
    evictions      how often a request was evicted
    """

    requests: RequestTimes
    missed: bool
    duration_s: float
    busy: float
    worked_s: float
    mean_batch: float
    mean_waiting: float
    peak_running: int
    steps: int
    evictions: int

    @cached_property
    def ttft_s(self) -> FloatArray:
        """Time to first token of each counted request, in order of arrival, queueing included."""
        times = self.requests
        started = times.counted & np.isfinite(times.first_s)
        return np.asarray(times.first_s[started] - times.arrival_s[started])

    @cached_property
    def tpot_s(self) -> FloatArray:
        """(last token - first token) / (output tokens - 1), of counted requests with more than one output token."""
        times = self.requests
        several = self._ended & (times.output_tokens > 1)
        return np.asarray((times.last_s[several] - times.first_s[several]) / (times.output_tokens[several] - 1))

    @cached_property
    def end_to_end_s(self) -> FloatArray:
        """Time from arrival to the last token of each counted request."""
        return np.asarray(self.requests.last_s[self._ended] - self.requests.arrival_s[self._ended])

    @cached_property
    def answered_s(self) -> FloatArray:
        """When the last token of each counted request came."""
        return np.asarray(self.requests.last_s[self._ended])

    @property
    def request_s(self) -> float:
        """How long a mean stage works for one request; those that are under way at the end of the run count half."""
        answered = np.isfinite(self.requests.last_s)
        under_way = np.isfinite(self.requests.first_s) & ~answered
        return self.worked_s / float(np.count_nonzero(answered) + np.count_nonzero(under_way) / 2.0)

    @property
    def _ended(self) -> BoolArray:
        return np.asarray(self.requests.counted & np.isfinite(self.requests.last_s))

    def ttft(self, probability: float) -> Percentile:
        """Percentile of the time to first token."""
        return percentile(self.ttft_s, probability)

    def tpot(self, probability: float) -> Percentile:
        """Percentile of the time per output token; nothing where no request has a second token."""
        return percentile(self.tpot_s, probability) if len(self.tpot_s) else Percentile(0.0, 0.0, 0.0)

    def end_to_end(self, probability: float) -> Percentile:
        """Percentile of the time from arrival to the last token."""
        return percentile(self.end_to_end_s, probability)


def pooled(results: Sequence[SimulationResult]) -> SimulationResult:
    """Replicas that ran side by side as one result, requests in order of arrival; figures are those of a mean replica."""
    if len(results) == 1:
        return results[0]
    parts = [result.requests for result in results]
    order = np.argsort(np.concatenate([part.arrival_s for part in parts]), kind="stable")
    merged = RequestTimes(
        **{field.name: np.concatenate([getattr(part, field.name) for part in parts])[order] for field in fields(RequestTimes)}
    )
    return SimulationResult(
        requests=merged,
        missed=any(result.missed for result in results),
        duration_s=max(result.duration_s for result in results),
        busy=fmean(result.busy for result in results),
        worked_s=sum(result.worked_s for result in results),
        mean_batch=fmean(result.mean_batch for result in results),
        mean_waiting=fmean(result.mean_waiting for result in results),
        peak_running=max(result.peak_running for result in results),
        steps=sum(result.steps for result in results),
        evictions=sum(result.evictions for result in results),
    )


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
    times: StepTimes,
    stream: RequestStream,
    limits: BatchLimits,
    *,
    concurrency: int,
    delay_s: float = 0.0,
    targets: Targets = NO_TARGETS,
    window: Window = MIDDLE,
) -> SimulationResult:
    """As ``simulate``, with ``concurrency`` clients that send their next request as soon as the last is answered (how
    public benchmarks measure); arrival times of the stream are not used.

    Network, tokenizer and client take ``delay_s`` from an answer to the next request's place in the queue. The result's
    arrivals are when clients sent.
    """
    known = min(concurrency, len(stream))
    arrival_s = np.full(len(stream), np.inf)
    arrival_s[:known] = delay_s
    closed = replace(stream, arrival_s=arrival_s)
    result = _simulate(times, closed, limits, targets, window, known=known, delay_s=delay_s)
    return replace(result, requests=replace(result.requests, arrival_s=result.requests.arrival_s - delay_s))


def _simulate(
    times: StepTimes,
    stream: RequestStream,
    limits: BatchLimits,
    targets: Targets,
    window: Window,
    *,
    known: int,
    delay_s: float = 0.0,
) -> SimulationResult:
    _require_runnable(times, stream, limits)
    per_slot = -(-limits.sequences // times.stages)
    requests = new_requests(
        stream.arrival_s, stream.prompt_tokens, stream.output_tokens, stream.cached_tokens, stream.rounds, stream.shared
    )
    first, end = window.measured(len(stream))
    counted_tpot = int(np.count_nonzero(stream.output_tokens[first:end] > 1))
    outcome = run(
        tables_of(times),
        Limits(
            per_slot,
            limits.step_tokens,
            limits.kv_tokens - stream.shared_tokens,
            _SCHEDULING_CODES[limits.scheduling],
            ADMIT_RESERVED if limits.admission is Admission.RESERVE else ADMIT_UNTIL_FULL,
        ),
        Promise(first, end, targets.ttft_s, targets.tpot_s, may_miss(end - first), may_miss(counted_tpot)),
        delay_s,
        requests,
        new_slots(times.stages),
        new_lists(times.stages, sequences=per_slot, max_output=int(stream.output_tokens.max())),
        new_stages(times.stages, len(times.kinds[0])),
        known,
    )
    return result_of(requests, outcome, first, end)


def tables_of(times: StepTimes) -> Tables:
    """The tables as the compiled simulation takes them: one for each kind of stage."""
    first, kinds = times.kinds
    by_stage = (
        times.tokens_s,
        times.logits_s,
        times.decode_s,
        times.prefill_s_per_pair,
        times.prefill_launch_s,
        times.least_prompt_s,
    )
    alike = by_stage if len(first) == times.stages else tuple(table[first] for table in by_stage)
    tokens_s, logits_s, decode_s, prefill_s_per_pair, prefill_launch_s, least_prompt_s = alike
    return Tables(
        tokens_s,
        logits_s,
        decode_s,
        times.kv_grid,
        prefill_s_per_pair,
        times.query_grid,
        times.prefix_grid,
        prefill_launch_s,
        least_prompt_s,
        kinds,
        times.query_tokens,
    )


def may_miss(counted: int) -> int:
    """How many of the counted requests may be over the target while the 95th percentile is not."""
    return counted - math.ceil(0.95 * counted)


def result_of(
    requests: RecordArray, outcome: tuple[bool, float, float, float, float, int, int, int], first: int, end: int
) -> SimulationResult:
    """What requests [first, end) saw, from what the compiled simulation leaves and returns."""
    missed, duration_s, busy_s, worked_s, waiting_s, peak_running, steps, evictions = outcome
    assert math.isfinite(duration_s), "requests wait that nothing can start"
    counted = np.zeros(len(requests), dtype=np.bool_)
    counted[first:end] = True
    first_s, last_s = requests["first_s"].copy(), requests["last_s"].copy()
    # Requests still decoding at the end of the run count until then; those without a first token are nan and do not count.
    decoding_s = np.nansum(np.where(np.isfinite(last_s), np.minimum(last_s, duration_s), duration_s) - first_s)
    return SimulationResult(
        requests=RequestTimes(
            arrival_s=requests["arrival_s"].copy(),
            first_s=first_s,
            last_s=last_s,
            output_tokens=requests["answer"].copy(),
            counted=counted,
            busy_s=requests["busy_s"].copy(),
        ),
        missed=missed,
        duration_s=duration_s,
        busy=busy_s / duration_s,
        worked_s=worked_s,
        mean_batch=float(decoding_s) / duration_s,
        mean_waiting=waiting_s / duration_s,
        peak_running=peak_running,
        steps=steps,
        evictions=evictions,
    )


def _require_runnable(times: StepTimes, stream: RequestStream, limits: BatchLimits) -> None:
    if stream.cache_tokens > limits.kv_tokens:
        raise WorkloadError(
            "the KV cache can't hold the longest request",
            given=stream.cache_tokens,
            allowed=f"at most {limits.kv_tokens} tokens",
        )
    # An evicted request comes back with the tokens it has generated.
    longest = int((stream.prompt_tokens + stream.output_tokens).max())
    whole = longest if limits.admission is Admission.PREEMPT else int(stream.prompt_tokens.max())
    if not limits.scheduling.cuts_prompts and whole > limits.step_tokens:
        raise WorkloadError(
            "without chunks a prompt must fit in one step", given=whole, allowed=f"at most {limits.step_tokens} tokens"
        )
    if stream.rounds is not None and limits.admission is Admission.PREEMPT:
        raise WorkloadError(
            "rounds that give several tokens are simulated with reserved room only",
            given=limits.admission.value,
            allowed=Admission.RESERVE.value,
        )
    per_slot, most = -(-limits.sequences // times.stages), limits.step_tokens // times.query_tokens
    if limits.sequences < 1 or per_slot > min(most, times.max_sequences):
        raise WorkloadError(
            "impossible limit of sequences at once",
            given=limits.sequences,
            allowed=f"1 to {times.stages * min(most, times.max_sequences)}",
        )
    if limits.step_tokens > times.max_tokens:
        raise WorkloadError(
            "step times are not known for so many tokens", given=limits.step_tokens, allowed=f"at most {times.max_tokens}"
        )
