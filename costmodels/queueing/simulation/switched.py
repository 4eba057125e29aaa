"""Simulation of a worker that switches layouts between prompts and answers (Seesaw, Su et al. 2025, arXiv 2503.06433).

The same devices compute prompts in one layout and answers in another, one of which has its weights on them at a time. Keys and
values of prompts wait in host memory ("tiered KV cache buffering"), so that layouts change as seldom as can be
("transition-minimizing scheduling"). The rule here:

1. Prompts are computed first come first served, in chunks, as long as one waits and host memory has room for it. A prompt's
   end gives its first token; then its keys and values go to the host, one request after another, while others are computed.
2. Once nothing is under way, the layout changes, if the host holds any request.
3. Requests come back in the same order, one after another while others decode, each when the devices have room for its prompt
   and its whole answer: nobody is evicted. Once all are answered the layout changes back.

Prompts that arrive meanwhile wait. All this is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    Stages,
    admit,
    busiest,
    compiled,
    leave,
    new_lists,
    new_requests,
    new_slots,
    new_stages,
    start_decoding,
    worked_on_average,
)
from meshwright.costmodels.queueing.simulation.event_loop import through_pipeline
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, count_late_starts, is_missed
from meshwright.costmodels.queueing.simulation.replica import (
    NO_TARGETS,
    BatchLimits,
    SimulationResult,
    Targets,
    Window,
    may_miss,
    pooled,
    result_of,
    tables_of,
    window_of,
)
from meshwright.costmodels.queueing.simulation.step_forming import (
    COMPLETED,
    COUNTERS,
    KNOWN,
    MISSED_TPOT,
    NEXT_NEW,
    PEAK,
    Tables,
    take_chunk,
)
from meshwright.costmodels.queueing.step_times import StepTimes

# The compiled core of a worker that switches layouts: prompts in one phase, answers in the next.


# The state of a worker that switches layouts: its two engines, their counters, and what both phases do with them.

# More counters: prompts computed in this phase, those of them whose caches are in host memory, tokens that host memory is
# given for, tokens on the devices, steps, phases of answers.
STAGED, SENT, BUFFERED, HELD, STEPS, PHASES = range(COUNTERS, COUNTERS + 6)
SWITCHED_COUNTERS = COUNTERS + 6

# Seconds of each kind, the sequences that decode integrated over time, and when the link to the host is free.
PREFILL_S, DECODE_S, SWITCHING_S, DECODING_S, LINK_FREE_S = range(5)
TOTALS = 5


class PhaseLimits(NamedTuple):
    """Sequences of one slot, tokens of a step, and tokens that the devices' cache holds."""

    sequences: int
    step_tokens: int
    kv_tokens: int


class Switching(NamedTuple):
    """Seconds of a token on its way to the host and back, of a change of layout, and tokens that the host holds."""

    out_token_s: float
    in_token_s: float
    to_decode_s: float
    to_prefill_s: float
    buffer_tokens: int


class Half(NamedTuple):
    """The engine that computes one of the two phases: step times, limits, and its state."""

    tables: Tables
    limits: PhaseLimits
    slots: RecordArray
    lists: Lists
    stages: Stages


class Staged(NamedTuple):
    """Requests in order of their prompts' ends, and when the caches of each are in host memory."""

    request: IntArray
    ready_s: FloatArray


@compiled
def is_over(counters: IntArray, promise: Promise) -> bool:
    """Return True if every counted request is answered, or a target is missed."""
    return counters[COMPLETED] == promise.end - promise.first or is_missed(counters, promise)


@compiled
def send(half: Half, slot: int, decoding: int, prompt_tokens: int, counters: IntArray, now: float) -> None:
    """Send a slot's step through the pipeline."""
    half.slots[slot].in_flight = 1
    half.slots[slot].ready_s = through_pipeline(half.tables, half.slots, half.stages, slot, decoding, prompt_tokens, now)
    counters[STEPS] += 1


@compiled
def complete(requests: RecordArray, promise: Promise, counters: IntArray, request: int, now: float) -> None:
    """Note the end of an answer, and whether its tokens came too slowly."""
    requests[request].last_s = now
    if promise.first <= request < promise.end:
        counters[COMPLETED] += 1
        answer = requests[request].answer
        if answer > 1 and (now - requests[request].first_s) / (answer - 1) > promise.tpot_s:
            counters[MISSED_TPOT] += 1


# The phase of prompts of a worker that switches layouts: steps of prompts, whose caches go to the host.


@compiled
def compute_prompts(
    prefill: Half,
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    admitted_s: FloatArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    now: float,
) -> float:
    """Compute prompts until none waits or host memory has no room for the next, and all their caches are there; returns when.

    While the host has no prompt yet the phase waits for one.
    """
    slots, turn = prefill.slots, 0
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                _end_prompt_step(prefill, decode, switching, promise, requests, staged, counters, totals, slot)
        while counters[SENT] < counters[STAGED] and staged.ready_s[counters[SENT]] <= now:
            counters[HELD] -= requests[staged.request[counters[SENT]]].prompt
            counters[SENT] += 1
        count_late_starts(requests, counters, promise, now)
        if is_over(counters, promise):
            return now
        if prefill.stages.free_s[0] <= now:
            slot = _start_prompt_step(prefill, switching, requests, admitted_s, counters, turn, now)
            if slot != NOBODY:
                turn = (slot + 1) % len(slots)
                continue
        following = _next_of_prompts(prefill, requests, staged, counters, now)
        if np.isinf(following):
            return now
        now = following


@compiled
def _next_of_prompts(prefill: Half, requests: RecordArray, staged: Staged, counters: IntArray, now: float) -> float:
    """When a step or a transfer ends, the first stage is free for an idle slot, or a prompt arrives; never once the phase has
    nothing under way and something to answer."""
    following, idle, busy = np.inf, False, counters[SENT] < counters[STAGED]
    if busy:
        following = staged.ready_s[counters[SENT]]
    for slot in range(len(prefill.slots)):
        if prefill.slots[slot].in_flight == 1:
            following, busy = min(following, prefill.slots[slot].ready_s), True
        else:
            idle = True
    if idle and prefill.stages.free_s[0] > now:
        following = min(following, prefill.stages.free_s[0])
    upcoming = counters[NEXT_NEW]
    if (busy or counters[STAGED] == 0) and upcoming < counters[KNOWN] and requests[upcoming].arrival_s > now:
        following = min(following, requests[upcoming].arrival_s)
    return following


@compiled
def _start_prompt_step(
    prefill: Half,
    switching: Switching,
    requests: RecordArray,
    admitted_s: FloatArray,
    counters: IntArray,
    turn: int,
    now: float,
) -> int:
    """Form a step of prompts for the first idle slot, from ``turn`` on, that has any; returns the slot or NOBODY."""
    slots, lists, stages = prefill.slots, prefill.lists, prefill.stages
    for k in range(len(slots)):
        slot = (turn + k) % len(slots)
        if slots[slot].in_flight == 1:
            continue
        slots[slot].n_finishing = 0
        for kind in range(len(stages.attention_s)):
            stages.attention_s[kind] = 0.0
        taken = 0
        while taken < prefill.limits.step_tokens:
            if slots[slot].queue_length == 0:
                request = counters[NEXT_NEW]
                if not _may_start(prefill.limits, switching, requests, slots, slot, counters, now):
                    break
                counters[NEXT_NEW] += 1
                counters[HELD] += requests[request].prompt
                counters[BUFFERED] += _buffered_tokens(requests, request)
                admitted_s[request] = now
                admit(requests, slots, lists.queue, slot, request)
            budget = prefill.limits.step_tokens - taken
            taken += take_chunk(prefill.tables, requests, slots, lists, slot, stages.attention_s, budget)
        if taken > 0:
            send(prefill, slot, 0, taken, counters, now)
            return slot
    return NOBODY


@compiled
def _may_start(
    limits: PhaseLimits,
    switching: Switching,
    requests: RecordArray,
    slots: RecordArray,
    slot: int,
    counters: IntArray,
    now: float,
) -> bool:
    """Return True if the next prompt has arrived, and slot, devices and host have room for it."""
    request = counters[NEXT_NEW]
    if request >= counters[KNOWN] or requests[request].arrival_s > now or slots[slot].running >= limits.sequences:
        return False
    in_host = counters[BUFFERED] + _buffered_tokens(requests, request) <= switching.buffer_tokens
    return in_host and counters[HELD] + requests[request].prompt <= limits.kv_tokens  # type: ignore[no-any-return]


@compiled
def _buffered_tokens(requests: RecordArray, request: int) -> int:
    """Tokens that a prompt takes in host memory: none where its first token is the whole answer."""
    return requests[request].prompt if requests[request].answer > 1 else 0


@compiled
def _end_prompt_step(
    prefill: Half,
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    slot: int,
) -> None:
    """Give the prompts that the step completes their first token, and send their caches to the host, one after another."""
    slots = prefill.slots
    slots[slot].in_flight = 0
    now = slots[slot].ready_s
    for i in range(slots[slot].n_finishing):
        request = prefill.lists.finishing[slot, i]
        requests[request].first_s = now
        requests[request].busy_s = busiest(prefill.stages) + busiest(decode.stages)
        leave(requests, slots, prefill.lists.ends, slot, request)
        if requests[request].answer == 1:
            counters[HELD] -= requests[request].prompt
            complete(requests, promise, counters, request, now)
            continue
        totals[LINK_FREE_S] = max(totals[LINK_FREE_S], now) + requests[request].prompt * switching.out_token_s
        staged.request[counters[STAGED]] = request
        staged.ready_s[counters[STAGED]] = totals[LINK_FREE_S]
        counters[STAGED] += 1


# The phase of answers of a worker that switches layouts: caches come from the host, and requests decode.


@compiled
def answer(
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    now: float,
) -> float:
    """Answer every request whose caches the host holds, in the order in which they came there; returns when that is done.

    Caches come up one request after another, as soon as the devices have room for all its tokens and a slot a place: that
    with the fewest requests.
    """
    slots = decode.slots
    taken, left, turn, running = 0, counters[STAGED], 0, 0
    loading_slot, loaded_s = NOBODY, now
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                ended = _end_answer_step(decode, promise, requests, counters, slot)
                left -= ended
                running -= ended
        count_late_starts(requests, counters, promise, now)
        if left == 0 or is_over(counters, promise):
            return now
        if loading_slot != NOBODY and loaded_s <= now:
            admit(requests, slots, decode.lists.queue, loading_slot, staged.request[taken - 1])
            loading_slot = NOBODY
        if loading_slot == NOBODY and taken < counters[STAGED]:
            request = staged.request[taken]
            tokens = requests[request].prompt + requests[request].answer
            slot = _emptiest(slots, decode.limits.sequences)
            if slot != NOBODY and counters[HELD] + tokens <= decode.limits.kv_tokens:
                counters[HELD] += tokens
                taken += 1
                running += 1
                counters[PEAK] = max(counters[PEAK], running)
                loading_slot, loaded_s = slot, now + requests[request].prompt * switching.in_token_s
                if loaded_s <= now:
                    continue
        if decode.stages.free_s[0] <= now:
            slot = _start_answer_step(decode, requests, counters, totals, turn, now)
            if slot != NOBODY:
                turn = (slot + 1) % len(slots)
                continue
        now = _next_of_answers(decode, loaded_s if loading_slot != NOBODY else np.inf, now)


@compiled
def _emptiest(slots: RecordArray, sequences: int) -> int:
    """The slot with the fewest requests, if it has a place left."""
    best = 0
    for slot in range(len(slots)):
        if slots[slot].running < slots[best].running:
            best = slot
    return best if slots[best].running < sequences else NOBODY


@compiled
def _next_of_answers(decode: Half, loaded_s: float, now: float) -> float:
    """When a step or a transfer ends, or the first stage is free for an idle slot with requests."""
    following = loaded_s
    for slot in range(len(decode.slots)):
        if decode.slots[slot].in_flight == 1:
            following = min(following, decode.slots[slot].ready_s)
        elif decode.slots[slot].running > 0 and decode.stages.free_s[0] > now:
            following = min(following, decode.stages.free_s[0])
    return following


@compiled
def _start_answer_step(
    decode: Half, requests: RecordArray, counters: IntArray, totals: FloatArray, turn: int, now: float
) -> int:
    """Form a step for the first idle slot, from ``turn`` on, that has requests; returns the slot or NOBODY."""
    slots, lists, stages = decode.slots, decode.lists, decode.stages
    for k in range(len(slots)):
        slot = (turn + k) % len(slots)
        if slots[slot].in_flight == 1 or slots[slot].running == 0:
            continue
        while slots[slot].queue_length > 0:
            request = lists.queue[slot, slots[slot].queue_first]
            slots[slot].queue_first = (slots[slot].queue_first + 1) % lists.queue.shape[1]
            slots[slot].queue_length -= 1
            start_decoding(requests, slots, lists.ends, slot, request, requests[request].answer - 1)
        for kind in range(len(stages.attention_s)):
            stages.attention_s[kind] = 0.0
        decoding = slots[slot].decoding
        slots[slot].kv_sum += decoding
        send(decode, slot, decoding, 0, counters, now)
        totals[DECODING_S] += decoding * (slots[slot].ready_s - now)
        return slot
    return NOBODY


@compiled
def _end_answer_step(decode: Half, promise: Promise, requests: RecordArray, counters: IntArray, slot: int) -> int:
    """Give every request of a slot its token; returns how many are answered."""
    slots, ends = decode.slots, decode.lists.ends
    slots[slot].in_flight = 0
    slots[slot].rounds += 1
    column = slots[slot].rounds % ends.shape[1]
    ended = 0
    while ends[slot, column] != NOBODY:
        request = ends[slot, column]
        counters[HELD] -= requests[request].prompt + requests[request].answer
        leave(requests, slots, ends, slot, request)
        complete(requests, promise, counters, request, slots[slot].ready_s)
        ended += 1
    return ended


@kept_compiled_whole
def run(  # type: ignore[no-untyped-def]
    prefill: Half,
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    admitted_s: FloatArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
):
    """Phases in turn until every counted request is answered, or a target is sure to be missed; returns (missed, duration,
    busy time of the busiest stages and of mean ones)."""
    now = 0.0
    while True:
        began = now
        now = compute_prompts(prefill, decode, switching, promise, requests, admitted_s, staged, counters, totals, now)
        totals[PREFILL_S] += now - began
        if is_over(counters, promise) or counters[STAGED] == 0:
            break
        now += switching.to_decode_s
        began = now
        now = answer(decode, switching, promise, requests, staged, counters, totals, now)
        totals[DECODE_S] += now - began
        counters[PHASES] += 1
        totals[SWITCHING_S] += switching.to_decode_s
        if is_over(counters, promise):
            break
        now += switching.to_prefill_s
        totals[SWITCHING_S] += switching.to_prefill_s
        counters[STAGED] = counters[SENT] = counters[BUFFERED] = 0
    busy_s = busiest(prefill.stages) + busiest(decode.stages)
    worked_s = worked_on_average(prefill.stages, prefill.tables.kinds)
    worked_s += worked_on_average(decode.stages, decode.tables.kinds)
    return is_missed(counters, promise), now, busy_s, worked_s


# The simulation of a worker that switches layouts.


@dataclass(frozen=True, eq=False)
class PhaseEngine:
    """One of the two layouts: its step times and batch limits. Of these count sequences at once, tokens in a step (of prompts
    alone) and in the devices' cache."""

    times: StepTimes
    limits: BatchLimits


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The cost of a change of layout, and the host memory for it.

    to_decode_s, to_prefill_s   until the weights of the other layout are on the devices
    out_token_s, in_token_s     keys and values of a token on the way to the host, and back
    buffer_tokens               tokens of prompts whose keys and values host memory holds
    """

    to_decode_s: float
    to_prefill_s: float
    out_token_s: float
    in_token_s: float
    buffer_tokens: int


@dataclass(frozen=True, eq=False)
class SwitchedResult:
    """The times that requests saw, and how long the worker spent in each layout, the wait for prompts included, and between
    them. ``phases`` of answers were begun and ended. The batch of ``whole`` is that of the decode layout, while it is on."""

    whole: SimulationResult
    phases: int
    prefill_s: float
    decode_s: float
    switching_s: float


def simulate_switched(
    prefill: PhaseEngine,
    decode: PhaseEngine,
    change: LayoutChange,
    stream: RequestStream,
    *,
    targets: Targets = NO_TARGETS,
    window: Window | None = None,
) -> SwitchedResult:
    """Requests of the stream through one worker, arriving as the stream says; which of them count as in ``simulate``.

    Raises WorkloadError when a request could never run: longer than the devices' cache or the room in host memory; and for
    prompts in a prefix cache and decode rounds of several tokens, which are not simulated.
    """
    _require_runnable(prefill, decode, change, stream)
    requests = new_requests(stream.arrival_s, stream.prompt_tokens, stream.output_tokens, None)
    admitted_s = np.full(len(stream), np.inf)
    first, end = (window or window_of(stream)).measured(len(stream))
    counted_tpot = int(np.count_nonzero(stream.output_tokens[first:end] > 1))
    counters, totals = np.zeros(SWITCHED_COUNTERS, dtype=np.int64), np.zeros(TOTALS)
    counters[KNOWN] = len(requests)
    missed, duration_s, busy_s, worked_s = run(
        _half(prefill, max_output=1),
        _half(decode, max_output=int(stream.output_tokens.max())),
        Switching(change.out_token_s, change.in_token_s, change.to_decode_s, change.to_prefill_s, change.buffer_tokens),
        Promise(first, end, targets.ttft_s, targets.tpot_s, may_miss(end - first), may_miss(counted_tpot)),
        requests,
        admitted_s,
        Staged(np.zeros(len(requests), dtype=np.int64), np.zeros(len(requests))),
        counters,
        totals,
    )
    peak, steps, phases = (int(counters[counter]) for counter in (PEAK, STEPS, PHASES))
    waited_s = np.minimum(admitted_s, duration_s) - np.minimum(stream.arrival_s, duration_s)
    outcome = (missed, duration_s, busy_s, worked_s, float(waited_s.sum()), peak, steps, 0)
    decode_s = float(totals[DECODE_S])
    return SwitchedResult(
        whole=replace(
            result_of(requests, outcome, first, end, one_run=stream.is_finite),
            mean_batch=float(totals[DECODING_S]) / decode_s if decode_s > 0.0 else 0.0,
        ),
        phases=int(phases),
        prefill_s=float(totals[PREFILL_S]),
        decode_s=decode_s,
        switching_s=float(totals[SWITCHING_S]),
    )


def pooled_switched(results: Sequence[SwitchedResult]) -> SwitchedResult:
    """Workers that ran side by side as one result; seconds and phases are summed."""
    return SwitchedResult(
        whole=pooled([result.whole for result in results]),
        phases=sum(result.phases for result in results),
        prefill_s=sum(result.prefill_s for result in results),
        decode_s=sum(result.decode_s for result in results),
        switching_s=sum(result.switching_s for result in results),
    )


def _half(engine: PhaseEngine, *, max_output: int) -> Half:
    times, limits = engine.times, engine.limits
    per_slot = -(-limits.sequences // times.stages)
    return Half(
        tables_of(times),
        PhaseLimits(per_slot, limits.step_tokens, limits.kv_tokens),
        new_slots(times.stages),
        new_lists(times.stages, sequences=per_slot, max_output=max_output),
        new_stages(times.stages, len(times.kinds[0])),
    )


def _require_runnable(prefill: PhaseEngine, decode: PhaseEngine, change: LayoutChange, stream: RequestStream) -> None:
    longest_prompt = int(stream.prompt_tokens.max())
    longest = int((stream.prompt_tokens + stream.output_tokens).max())
    for place, needed, room in (
        ("the prefill layout's cache", longest_prompt, prefill.limits.kv_tokens),
        ("the decode layout's cache", longest, decode.limits.kv_tokens),
        ("the buffer in host memory", longest_prompt, change.buffer_tokens),
    ):
        if needed > room:
            raise WorkloadError(f"{place} can't hold the longest request", given=needed, allowed=f"at most {room} tokens")
    if stream.cached_tokens is not None or stream.shared_tokens or stream.rounds is not None:
        raise WorkloadError("prefix caches and drafted tokens are not simulated with layouts that switch")
    for name, engine in (("prefill", prefill), ("decode", decode)):
        per_slot = -(-engine.limits.sequences // engine.times.stages)
        if engine.limits.sequences < 1 or per_slot > engine.times.max_sequences:
            raise WorkloadError(
                f"impossible limit of sequences at once in the {name} layout",
                given=engine.limits.sequences,
                allowed=f"1 to {engine.times.stages * engine.times.max_sequences}",
            )
    if prefill.limits.step_tokens > prefill.times.max_tokens:
        raise WorkloadError(
            "step times are not known for so many tokens",
            given=prefill.limits.step_tokens,
            allowed=f"at most {prefill.times.max_tokens}",
        )
