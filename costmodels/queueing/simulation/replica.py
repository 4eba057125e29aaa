"""Discrete-event simulation of continuous batching on one serving replica.

A step holds one token of every decoding sequence and, within the token limit, chunks of prompts in order of arrival
(Sarathi-Serve, OSDI'24); with prefill-first scheduling a step holds either prompts or decoding sequences (Orca, OSDI'22,
and the first vLLM). A pipeline of p stages keeps p batches ("slots") in flight, each sequence staying in its slot.
Attention groups form a batch each, of requests of their own, and step together.

The course of a run over time is its requests waiting, its requests decoding, and how busy it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.results import RequestTimes, SimulationResult, pooled
from meshwright.costmodels.queueing.simulation.coasting import (
    GROUP_COUNTERS,
    LAST,
    PRESENT,
    WAITED,
    Joint,
    coast_groups,
    joint_s,
)
from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    compiled,
    new_lists,
    new_requests,
    new_slots,
    new_stages,
)
from meshwright.costmodels.queueing.simulation.event_loop import EVENTS_BETWEEN_LOOKS, run
from meshwright.costmodels.queueing.simulation.missed_targets import (
    Promise,
    count_late_starts,
    finish_step,
    form_step,
    is_missed,
    is_sure_to_miss,
    step_cell,
    work_s,
)
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    CHUNKED,
    CHUNKS_ONLY,
    COMPLETED,
    COUNTERS,
    EVICTIONS,
    KNOWN,
    MISSED_TPOT,
    NEXT_NEW,
    PEAK,
    PREFILL_ONLY,
    RUNNING,
    WHOLE,
    Scheduling,
    SlotLimits,
    Tables,
    admissible,
)
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes

# The compiled core for attention groups: each forms batches of its own requests, and all step together.


def new_group_counters(groups: int, requests: int, *, known: int) -> IntArray:
    """Counters before anything has come: a row for each group, whose line of new requests ends at the number of requests, and
    one for the replica."""
    counters = np.zeros((groups + 1, GROUP_COUNTERS), dtype=np.int64)
    counters[:, KNOWN] = counters[:groups, NEXT_NEW] = requests
    counters[groups, KNOWN] = known
    return counters


@kept_compiled_whole
def run_groups(  # type: ignore[no-untyped-def]
    tables: Tables,
    joint: Joint,
    limits: SlotLimits,
    promise: Promise,
    delay_s: float,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    room: tuple[FloatArray, FloatArray],
):
    """Run until every counted request is answered, or a target is sure to be missed; arrivals and what is returned are those
    of one group's simulation, ``waiting`` and evictions of all groups, the peak that of one."""
    whole = counters[len(slots)]
    # No literal, of whose type what is given a turn would be compiled a second time.
    turn: int = np.int64(0)  # type: ignore[assignment]
    now, busy_s, waiting_s, steps, missed, unseen = 0.0, 0.0, 0.0, 0, False, 0
    while True:
        count_late_starts(requests, whole, promise, now)
        unseen += 1
        if unseen > whole[RUNNING] + EVENTS_BETWEEN_LOOKS and not np.isinf(promise.tpot_s):
            missed, unseen = is_sure_to_miss(requests, slots, whole, promise, now), 0
        if missed or is_missed(whole, promise):
            missed = True
            break
        if whole[COMPLETED] == promise.end - promise.first:
            break
        turn = deal_to_groups(joint, requests, counters, now, turn)
        arrival_s = requests[whole[NEXT_NEW]].arrival_s if whole[NEXT_NEW] < whole[KNOWN] else np.inf
        rounds, step_s = coast_groups(tables, joint, limits, requests, slots, lists.ends, counters, room[0], now, arrival_s)
        coasts = rounds > 0
        if not coasts:
            step_s = start_joint_step(tables, joint, limits, requests, slots, lists, counters, evicted, room[1], now)
            rounds = 1
        if step_s < 0.0:
            # Nobody has work: the next thing that happens is an arrival.
            now = arrival_s
            if np.isinf(now):
                break
            continue
        waiting_s += _waiting_time(requests, counters, now, now + step_s)
        now += step_s
        busy_s += step_s
        steps += rounds
        if not coasts:
            finish_joint_step(requests, slots, lists, counters, limits, promise, delay_s, now, busy_s)
    peak, evictions = 0, 0
    for group in range(len(slots)):
        peak, evictions = max(peak, counters[group, PEAK]), evictions + counters[group, EVICTIONS]
    return missed, now, busy_s, busy_s, waiting_s, peak, steps, evictions


@compiled
def deal_to_groups(joint: Joint, requests: RecordArray, counters: IntArray, now: float, turn: int) -> int:
    """Give every request that has arrived to a group; returns the group whose turn is next."""
    groups = len(counters) - 1
    whole = counters[groups]
    while whole[NEXT_NEW] < whole[KNOWN] and requests[whole[NEXT_NEW]].arrival_s <= now:
        request, chosen, least = whole[NEXT_NEW], turn, -1
        whole[NEXT_NEW] = requests[request].follower
        for k in range(groups):
            group = turn + k if turn + k < groups else turn + k - groups
            running = counters[group, RUNNING]
            waiting = counters[group, PRESENT] - running
            score = joint.waiting_weight * waiting + joint.running_weight * running
            if least < 0 or score < least:
                chosen, least = group, score
        requests[request].group = chosen
        requests[request].follower = len(requests)
        if counters[chosen, NEXT_NEW] == len(requests):
            counters[chosen, NEXT_NEW] = request
        else:
            requests[counters[chosen, LAST]].follower = request
        counters[chosen, LAST] = request
        counters[chosen, PRESENT] += 1
        turn = chosen + 1 if chosen + 1 < groups else 0
    return turn


@compiled
def start_joint_step(
    tables: Tables,
    joint: Joint,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    attention_s: FloatArray,
    now: float,
) -> float:
    """Form a step of every group that has work; returns its time, less than 0 where none has."""
    total, fullest, slowest_s, running, least_s = 0, 0, 0.0, 0, 0.0
    prompts_wait = joint.joined_steps > 0 and _prompts_wait(joint, limits, requests, slots, counters, evicted, now)
    for group in range(len(slots)):
        if counters[group, PRESENT] == 0:
            continue
        decoding, prompt_tokens = form_step(
            tables, limits, requests, slots, lists, group, counters[group], evicted[group], attention_s, now, prompts_wait
        )
        running += counters[group, RUNNING]
        if decoding + prompt_tokens > 0:
            slots[group].in_flight = 1
            cell = step_cell(tables, slots, group, decoding)
            own_s = work_s(tables, slots, 0, group, decoding, prompt_tokens, attention_s[0], cell)
            tokens = decoding * tables.query_tokens + prompt_tokens
            total, fullest, slowest_s = total + tokens, max(fullest, tokens), max(slowest_s, own_s)
            if prompt_tokens > 0:
                least_s = joint.least_prompt_s
    counters[len(slots), RUNNING] = running
    return max(slowest_s + joint_s(joint, total, fullest), least_s) if total > 0 else -1.0


@compiled
def _prompts_wait(
    joint: Joint,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    counters: IntArray,
    evicted: IntArray,
    now: float,
) -> bool:
    """Return True if groups that have prompts wait for those that have none, as long as all have something to decode."""
    whole, all_prompts, all_decode = counters[len(slots)], True, True
    for group in range(len(slots)):
        all_decode = all_decode and slots[group].decoding > 0
        if slots[group].queue_length == 0 and all_prompts:
            room = limits.step_tokens
            next_one = admissible(limits, requests, slots, group, counters[group], evicted[group], now, room)
            all_prompts = next_one != NOBODY
    whole[WAITED] += 1
    if all_prompts or not all_decode or whole[WAITED] >= joint.joined_steps:
        whole[WAITED] = 0
    return whole[WAITED] > 0  # type: ignore[no-any-return]


@compiled
def _waiting_time(requests: RecordArray, counters: IntArray, now: float, until: float) -> float:
    """Number of waiting requests of all groups, integrated over a step; who arrives meanwhile waits for its end."""
    groups = len(counters) - 1
    waiting = -counters[groups, RUNNING]
    for group in range(groups):
        waiting += counters[group, PRESENT]
    total = waiting * (until - now)
    request = counters[groups, NEXT_NEW]
    while request < counters[groups, KNOWN] and requests[request].arrival_s < until:
        total += until - requests[request].arrival_s
        request += 1
    return total  # type: ignore[no-any-return]


@compiled
def finish_joint_step(
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    limits: SlotLimits,
    promise: Promise,
    delay_s: float,
    now: float,
    busy_s: float,
) -> None:
    """Give out the tokens of the step that ends now; in a closed loop clients that got an answer send their next request."""
    whole = counters[len(slots)]
    for group in range(len(slots)):
        if slots[group].in_flight == 0:
            continue
        before = counters[group, RUNNING]
        slots[group].ready_s, slots[group].busy_s = now, busy_s
        finish_step(requests, slots, lists.finishing, lists.ends, group, counters[group], limits, promise, delay_s)
        answered = before - counters[group, RUNNING]
        counters[group, PRESENT] -= answered
        whole[RUNNING] -= answered
        for counter in (COMPLETED, MISSED_TPOT):
            whole[counter] += counters[group, counter]
            counters[group, counter] = 0
        for _ in range(answered):
            if whole[KNOWN] < len(requests):
                requests[whole[KNOWN]].arrival_s = now + delay_s
                whole[KNOWN] += 1


# The simulation of a replica.

__all__ = [
    "Admission",
    "BatchLimits",
    "RequestTimes",
    "Scheduling",
    "SimulationResult",
    "Targets",
    "Window",
    "may_miss",
    "pooled",
    "result_of",
    "simulate",
    "simulate_closed_loop",
    "tables_of",
]


_SCHEDULING_CODES = {
    Scheduling.CHUNKED_PREFILL: CHUNKED,
    Scheduling.WHOLE_PROMPTS: WHOLE,
    Scheduling.PREFILL_FIRST: PREFILL_ONLY,
    Scheduling.CHUNKS_FIRST: CHUNKS_ONLY,
}


_KEPT_TABLES = 8
"""Engines whose tables are kept as the compiled simulation takes them: several simulations of one come after another."""


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
    """Limits of a replica's engine: sequences at once, tokens in a step, tokens that the KV cache holds; of several attention
    groups those of each."""

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
    """The requests that are counted: those after a warm-up share, up to a cool-down share at the end."""

    warm_up: float = 0.10
    cool_down: float = 0.05

    def measured(self, requests: int) -> tuple[int, int]:
        """First and one past the last counted request."""
        return int(requests * self.warm_up), requests - int(requests * self.cool_down)


NO_TARGETS = Targets()
MIDDLE = Window()
EVERYTHING = Window(warm_up=0.0, cool_down=0.0)


def window_of(stream: RequestStream) -> Window:
    """Return the requests that count: of a finite stream all, of a piece of a stationary load those in the middle."""
    return EVERYTHING if stream.is_finite else MIDDLE


def simulate(
    times: StepTimes | GroupTimes,
    stream: RequestStream,
    limits: BatchLimits,
    *,
    targets: Targets = NO_TARGETS,
    window: Window | None = None,
) -> SimulationResult:
    """Requests of the stream through one replica, arriving as the stream says; all its attention groups together. Without a
    ``window`` the stream's own requests count.

    Raises WorkloadError when the engine could never run a request (longer than the cache or, unless prompts are chunked,
    than a step).
    """
    return _simulate(times, stream, limits, targets, window, known=len(stream))


def simulate_closed_loop(
    times: StepTimes | GroupTimes,
    stream: RequestStream,
    limits: BatchLimits,
    *,
    concurrency: int,
    delay_s: float = 0.0,
    targets: Targets = NO_TARGETS,
    window: Window | None = None,
) -> SimulationResult:
    """As ``simulate``, with ``concurrency`` clients that send their next request as soon as the last is answered (how
    public benchmarks measure); arrival times of the stream are not used.

    Network, tokenizer and client take ``delay_s`` from an answer to the next request's place in the queue, from which the
    result's times to first token count.
    """
    known = min(concurrency, len(stream))
    arrival_s = np.full(len(stream), np.inf)
    arrival_s[:known] = delay_s
    closed = replace(stream, arrival_s=arrival_s)
    return _simulate(times, closed, limits, targets, window, known=known, delay_s=delay_s)


def _simulate(
    times: StepTimes | GroupTimes,
    stream: RequestStream,
    limits: BatchLimits,
    targets: Targets,
    window: Window | None,
    *,
    known: int,
    delay_s: float = 0.0,
) -> SimulationResult:
    own = times.own if isinstance(times, GroupTimes) else times
    require_runnable(own, stream, limits)
    requests, compiled_limits = requests_of(stream), slot_limits(limits, stream, stages=own.stages)
    per_slot = compiled_limits.sequences
    first, end = (window or window_of(stream)).measured(len(stream))
    counted_tpot = int(np.count_nonzero(stream.output_tokens[first:end] > 1))
    promise = Promise(first, end, targets.ttft_s, targets.tpot_s, may_miss(end - first), may_miss(counted_tpot))
    slots = times.groups if isinstance(times, GroupTimes) else own.stages
    lists = new_lists(slots, sequences=per_slot, max_output=int(stream.output_tokens.max()))
    given = (compiled_limits, promise, delay_s, requests, new_slots(slots), lists)
    if isinstance(times, GroupTimes):
        of_groups = new_group_counters(times.groups, len(requests), known=known)
        # Nobody new starts in a group before all that it has evicted, so those are no more than may run.
        evicted_of = np.zeros((times.groups, per_slot), dtype=np.int64)
        room = np.zeros((times.groups, 2)), np.zeros(1)
        outcome = run_groups(group_tables(times), joint_of(times), *given, of_groups, evicted_of, room)
        return result_of(requests, outcome, first, end, groups=times.groups, one_run=stream.is_finite)
    counters = np.zeros(COUNTERS, dtype=np.int64)
    counters[KNOWN] = known
    evicted = np.zeros(len(requests), dtype=np.int64)
    outcome = run(tables_of(own), *given, new_stages(own.stages, len(own.kinds[0])), counters, evicted)
    return result_of(requests, outcome, first, end, one_run=stream.is_finite)


def requests_of(stream: RequestStream) -> RecordArray:
    """The requests of a stream as the compiled simulation takes them."""
    return new_requests(
        stream.arrival_s, stream.prompt_tokens, stream.output_tokens, stream.cached_tokens, stream.rounds, stream.shared
    )


def slot_limits(limits: BatchLimits, stream: RequestStream, *, stages: int) -> SlotLimits:
    """The limits as the compiled simulation takes them."""
    return SlotLimits(
        -(-limits.sequences // stages),
        limits.step_tokens,
        limits.kv_tokens - stream.shared_tokens,
        _SCHEDULING_CODES[limits.scheduling],
        ADMIT_RESERVED if limits.admission is Admission.RESERVE else ADMIT_UNTIL_FULL,
    )


def group_tables(times: GroupTimes) -> Tables:
    """The tables of the own part of groups. The host launches kernels of both parts: its least time is that of whole steps."""
    return tables_of(times.own)._replace(least_prompt_s=np.zeros(1))


def joint_of(times: GroupTimes) -> Joint:
    """The joint part as the compiled simulation takes it."""
    return Joint(
        times.total_grid,
        times.experts_s,
        times.gathered_s,
        times.exchanged_s,
        times.shared_s,
        times.beside_tokens,
        float(times.own.least_prompt_s[0]),
        times.joined_steps,
        times.dealing.waiting,
        times.dealing.running,
    )


@lru_cache(maxsize=_KEPT_TABLES)
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
    """Return the number of counted requests that may be over the target while the 95th percentile is not."""
    return counted - math.ceil(0.95 * counted)


def result_of(
    requests: RecordArray,
    outcome: tuple[bool, float, float, float, float, int, int, int],
    first: int,
    end: int,
    *,
    groups: int = 1,
    one_run: bool = False,
) -> SimulationResult:
    """Return the result of requests [first, end), from what the compiled simulation leaves and returns."""
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
            group=requests["group"].copy(),
        ),
        missed=missed,
        duration_s=duration_s,
        busy=busy_s / duration_s,
        worked_s=groups * worked_s,
        mean_batch=float(decoding_s) / duration_s / groups,
        mean_waiting=waiting_s / duration_s / groups,
        peak_running=peak_running,
        steps=steps,
        evictions=evictions,
        groups=groups,
        one_run=one_run,
    )


def require_runnable(times: StepTimes, stream: RequestStream, limits: BatchLimits) -> None:
    """Refuse what the engine could never run. Raises WorkloadError."""
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


@dataclass(frozen=True, eq=False)
class LoadTimeline:
    """Equal intervals of a run, from 0 to ``end_s``; each figure is a mean over its interval and over the replicas,
    or their attention groups.

    waiting    requests without a first token: in the queue, or with their prompt under way
    decoding   requests between first and last token
    busy       share of time that the busiest stage works
    """

    end_s: float
    waiting: FloatArray
    decoding: FloatArray
    busy: FloatArray


def timeline(results: Sequence[SimulationResult], *, intervals: int) -> LoadTimeline:
    """The timeline of replicas that ran side by side."""
    end_s = max(result.duration_s for result in results)
    edges = np.linspace(0.0, end_s, intervals + 1)
    width = end_s / intervals
    waiting, decoding, busy = (np.zeros(intervals) for _ in range(3))
    for result in results:
        times = result.requests
        arrived, first, last = (_total_since(events, edges) for events in (times.arrival_s, times.first_s, times.last_s))
        waiting += np.diff(arrived - first) / width
        decoding += np.diff(first - last) / width
        busy += np.diff(_busy_until(result, edges)) / width
    n = len(results)
    groups = n * results[0].groups
    return LoadTimeline(end_s, waiting / groups, decoding / groups, np.clip(busy / n, 0.0, 1.0))


def _total_since(events_s: FloatArray, edges: FloatArray) -> FloatArray:
    """At each edge, the time since each event that has happened, added up; its slope is how many have."""
    happened = np.sort(events_s[np.isfinite(events_s)])
    sums = np.concatenate([[0.0], np.cumsum(happened)])
    count = np.searchsorted(happened, edges, side="right")
    return np.asarray(count * edges - sums[count])


def _busy_until(result: SimulationResult, edges: FloatArray) -> FloatArray:
    """Working time up to each edge: known at every first token, linear between."""
    times = result.requests
    seen = np.isfinite(times.first_s)
    order = np.argsort(times.first_s[seen])
    at = np.concatenate([[0.0], times.first_s[seen][order], [result.duration_s]])
    worked = np.concatenate([[0.0], times.busy_s[seen][order], [result.busy * result.duration_s]])
    return np.asarray(np.interp(edges, at, np.maximum.accumulate(worked)))
