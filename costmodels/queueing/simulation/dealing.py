"""A router that gives each request to the worker with the fewest: all workers run side by side until every request is dealt.

A worker's course depends on nothing but the requests that it gets, so what is found here is only who gets which: their times
are then those of one worker after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.coasting import (
    GROUP_COUNTERS,
    LAST,
    Joint,
    coast,
    coast_groups,
    quiet_rounds,
)
from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    Stages,
    compiled,
    new_lists,
    new_slots,
    new_stages,
)
from meshwright.costmodels.queueing.simulation.event_loop import next_step_event, start_any_step
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, finish_step
from meshwright.costmodels.queueing.simulation.replica import (
    BatchLimits,
    deal_to_groups,
    finish_joint_step,
    group_tables,
    joint_of,
    requests_of,
    require_runnable,
    slot_limits,
    start_joint_step,
    tables_of,
)
from meshwright.costmodels.queueing.simulation.step_forming import COMPLETED, KNOWN, NEXT_NEW, SlotLimits, Tables
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes

MOST_TOGETHER = 8
"""Most equal workers that are simulated side by side: 32 have 95th percentiles within 2% of those of 8 (one engine at three
loads)."""

# Counters of a worker beside those of a group: the requests that it was given, and the slot whose turn it is.
GIVEN, TURN = range(GROUP_COUNTERS, GROUP_COUNTERS + 2)
WORKER_COUNTERS = GROUP_COUNTERS + 2


@kept_compiled_whole
def deal_to_fewest(
    tables: Tables,
    limits: SlotLimits,
    promise: Promise,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    stages: Stages,
    counters: IntArray,
    evicted: IntArray,
    clock: FloatArray,
    dealt: IntArray,
) -> None:
    """Give each request to the worker, which ``dealt`` gets, that holds the fewest; of several to the next in turn.

    Arrays of workers have one row for each. ``clock`` has of each worker the time that it has reached, and the time before
    which it answers nobody.
    """
    # No literal, of whose type what is given a turn would be compiled a second time.
    turn: int = np.int64(0)  # type: ignore[assignment]
    workers = len(slots)
    for request in range(len(requests)):
        now = requests[request].arrival_s
        chosen, fewest = turn, -1
        for k in range(workers):
            worker = turn + k if turn + k < workers else turn + k - workers
            if clock[worker, 1] < now:
                _advance(tables, limits, promise, requests, slots, lists, stages, counters, evicted, clock, worker, now)
            held = counters[worker, GIVEN] - counters[worker, COMPLETED]
            if fewest < 0 or held < fewest:
                chosen, fewest = worker, held
        if clock[chosen, 1] >= now:
            _advance(tables, limits, promise, requests, slots, lists, stages, counters, evicted, clock, chosen, now)
        _give(requests, counters[chosen], request)
        dealt[request] = chosen
        clock[chosen, 0] = clock[chosen, 1] = now
        turn = chosen + 1 if chosen + 1 < workers else 0


@compiled
def _give(requests: RecordArray, counters: IntArray, request: int) -> None:
    """Put a request at the end of a worker's line."""
    requests[request].follower = len(requests)
    if counters[NEXT_NEW] == len(requests):
        counters[NEXT_NEW] = request
    else:
        requests[counters[LAST]].follower = request
    counters[LAST] = request
    counters[GIVEN] += 1


@compiled
def _advance(
    tables: Tables,
    limits: SlotLimits,
    promise: Promise,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    stages: Stages,
    counters: IntArray,
    evicted: IntArray,
    clock: FloatArray,
    worker: int,
    until_s: float,
) -> None:
    """Let a worker run until then, without what happens at that time: all that come at one time are dealt before."""
    own, own_counters, own_evicted = slots[worker], counters[worker], evicted[worker]
    own_lists = Lists(lists.queue[worker], lists.finishing[worker], lists.ends[worker])
    own_stages = Stages(stages.free_s[worker], stages.busy_s[worker], stages.attention_s[worker], stages.step_s[worker])
    now, following = clock[worker, 0], clock[worker, 0]
    while following < until_s:
        now = following
        for slot in range(len(own)):
            if own[slot].in_flight == 1 and own[slot].ready_s <= now:
                finish_step(requests, own, own_lists.finishing, own_lists.ends, slot, own_counters, limits, promise, 0.0)
        if own_stages.free_s[0] <= now:
            if len(own) == 1:
                coast(tables, limits, requests, own, own_lists.ends, own_counters, own_evicted, own_stages, now, until_s)
            if own_stages.free_s[0] <= now:
                slot = start_any_step(
                    tables, limits, requests, own, own_lists, own_counters, own_evicted, own_stages, now, own_counters[TURN]
                )
                if slot != NOBODY:
                    own_counters[TURN] = (slot + 1) % len(own)
                    continue
        following = next_step_event(own, own_stages.free_s[0], now)
    if len(own) == 1 and own[0].in_flight == 0 and not np.isinf(following):
        _, quiet_s = quiet_rounds(tables, limits, requests, own, own_lists.ends, own_counters, own_evicted, following, np.inf)
        following += quiet_s
    clock[worker, 0], clock[worker, 1] = now, following


# The same of workers each of which has attention groups that step together.


@kept_compiled_whole
def deal_to_fewest_of_groups(
    tables: Tables,
    joint: Joint,
    limits: SlotLimits,
    promise: Promise,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    room: tuple[FloatArray, FloatArray],
    clock: FloatArray,
    dealt: IntArray,
) -> None:
    """As `deal_to_fewest`; a worker's counters are those of its groups and of all of them, and ``clock`` has of each the end of
    its last step, and whether tokens of that are still to be given out."""
    # No literal, of whose type what is given a turn would be compiled a second time.
    turn: int = np.int64(0)  # type: ignore[assignment]
    workers, groups = len(slots), slots.shape[1]
    for request in range(len(requests)):
        now = requests[request].arrival_s
        chosen, fewest = turn, -1
        for k in range(workers):
            worker = turn + k if turn + k < workers else turn + k - workers
            own_lists = Lists(lists.queue[worker], lists.finishing[worker], lists.ends[worker])
            _advance_groups(
                tables, joint, limits, promise, requests, slots[worker], own_lists, counters[worker], evicted[worker], room,
                clock[worker], now,
            )  # fmt: skip
            whole = counters[worker, groups]
            held = whole[GIVEN] - whole[COMPLETED]
            if fewest < 0 or held < fewest:
                chosen, fewest = worker, held
        _give(requests, counters[chosen, groups], request)
        dealt[request] = chosen
        if fewest == 0:
            clock[chosen, 0] = now
        turn = chosen + 1 if chosen + 1 < workers else 0


@compiled
def _advance_groups(
    tables: Tables,
    joint: Joint,
    limits: SlotLimits,
    promise: Promise,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    room: tuple[FloatArray, FloatArray],
    clock: FloatArray,
    until_s: float,
) -> None:
    """Let all groups of a worker run until a step ends then or later."""
    whole = counters[len(slots)]
    while clock[0] < until_s:
        now = clock[0]
        if clock[1] > 0.0:
            finish_joint_step(requests, slots, lists, counters, limits, promise, 0.0, now, 0.0)
            clock[1] = 0.0
        if whole[GIVEN] == whole[COMPLETED]:
            break
        whole[TURN] = deal_to_groups(joint, requests, counters, now, whole[TURN])
        rounds, step_s = coast_groups(tables, joint, limits, requests, slots, lists.ends, counters, room[0], now, until_s)
        if rounds == 0:
            step_s = start_joint_step(tables, joint, limits, requests, slots, lists, counters, evicted, room[1], now)
            clock[1] = 1.0
        if step_s < 0.0:
            break
        clock[0] = now + step_s


def dealt_to_fewest(
    times: StepTimes | GroupTimes, stream: RequestStream, limits: BatchLimits, *, workers: int
) -> list[RequestStream]:
    """The requests of each worker, where a router gives each to the worker that holds the fewest, waiting or running; workers
    without any are left out.

    Raises WorkloadError when the engine could never run a request.
    """
    own = times.own if isinstance(times, GroupTimes) else times
    require_runnable(own, stream, limits)
    requests, of_slots = requests_of(stream), slot_limits(limits, stream, stages=own.stages)
    n, slots = len(requests), times.groups if isinstance(times, GroupTimes) else own.stages
    lists = new_lists(slots, sequences=of_slots.sequences, max_output=int(stream.output_tokens.max()))
    everybody = Promise(0, n, math.inf, math.inf, n, n)
    lines = np.stack([new_slots(slots)] * workers), Lists(*_of_each(lists, workers))
    # A worker has a line for each group and one for all; without groups one alone.
    counters = np.zeros((workers, slots + 1, WORKER_COUNTERS), dtype=np.int64)
    counters[:, :, KNOWN] = counters[:, :, NEXT_NEW] = n
    evicted = np.zeros((workers, slots, of_slots.sequences), dtype=np.int64)
    clock, dealt = np.zeros((workers, 2)), np.zeros(n, dtype=np.int64)
    if isinstance(times, GroupTimes):
        joint, room = joint_of(times), (np.zeros((slots, 2)), np.zeros(1))
        deal_to_fewest_of_groups(
            group_tables(times), joint, of_slots, everybody, requests, *lines, counters, evicted, room, clock, dealt
        )
    else:
        stages = Stages(*_of_each(new_stages(slots, len(own.kinds[0])), workers))
        alone = np.ascontiguousarray(counters[:, 0]), evicted.reshape(workers, -1)
        deal_to_fewest(tables_of(own), of_slots, everybody, requests, *lines, stages, *alone, clock, dealt)
    return [stream[members] for worker in range(workers) if len(members := np.flatnonzero(dealt == worker))]


def _of_each(arrays: Iterable[npt.NDArray[Any]], workers: int) -> Iterator[npt.NDArray[Any]]:
    """Each array as often as there are workers."""
    return (np.stack([array] * workers) for array in arrays)
