"""The compiled core of the simulation of attention groups: each forms batches of its own requests, and all step together."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.queueing.simulation.coasting import (
    GROUP_COUNTERS,
    LAST,
    PRESENT,
    WAITED,
    Joint,
    coast_groups,
    joint_s,
)
from meshwright.costmodels.queueing.simulation.engine_state import NOBODY, FloatArray, IntArray, Lists, RecordArray, compiled
from meshwright.costmodels.queueing.simulation.event_loop import EVENTS_BETWEEN_LOOKS
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
    COMPLETED,
    EVICTIONS,
    KNOWN,
    MISSED_TPOT,
    NEXT_NEW,
    PEAK,
    RUNNING,
    SlotLimits,
    Tables,
    admissible,
)


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
        turn = _deal_out(joint, requests, counters, now, turn)
        rounds, step_s = coast_groups(tables, joint, limits, requests, slots, lists.ends, counters, room[0], now)
        coasts = rounds > 0
        if not coasts:
            step_s = _start_step(tables, joint, limits, requests, slots, lists, counters, evicted, room[1], now)
            rounds = 1
        if step_s < 0.0:
            # Nobody has work: the next thing that happens is an arrival.
            now = requests[whole[NEXT_NEW]].arrival_s if whole[NEXT_NEW] < whole[KNOWN] else np.inf
            if np.isinf(now):
                break
            continue
        waiting_s += _waiting_time(requests, counters, now, now + step_s)
        now += step_s
        busy_s += step_s
        steps += rounds
        if not coasts:
            _finish(requests, slots, lists, counters, limits, promise, delay_s, now, busy_s)
    peak, evictions = 0, 0
    for group in range(len(slots)):
        peak, evictions = max(peak, counters[group, PEAK]), evictions + counters[group, EVICTIONS]
    return missed, now, busy_s, busy_s, waiting_s, peak, steps, evictions


@compiled
def _deal_out(joint: Joint, requests: RecordArray, counters: IntArray, now: float, turn: int) -> int:
    """Give every request that has arrived to a group; returns the group whose turn is next."""
    groups = len(counters) - 1
    whole = counters[groups]
    while whole[NEXT_NEW] < whole[KNOWN] and requests[whole[NEXT_NEW]].arrival_s <= now:
        request, chosen, least = whole[NEXT_NEW], turn, -1
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
        whole[NEXT_NEW] += 1
        turn = chosen + 1 if chosen + 1 < groups else 0
    return turn


@compiled
def _start_step(
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
def _finish(
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
