"""State of a simulated engine, as arrays that compiled code works on, and the operations that keep it consistent.

Structured arrays, one record a request and one a slot: compiled code passes few arrays, each record lies in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
RecordArray = npt.NDArray[np.void]

WAITING, PREFILLING, DECODING, DONE = 0, 1, 2, 3
NOBODY = -1

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile a function that only works on arrays it is given into each function that calls it, without counting references.

    A call passes every array as some ten numbers, and there are several calls an event: two thirds of a simulation's time. No
    entry for Python or C is made: that would compile each function twice more.
    """
    return njit(_nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[call-overload, no-any-return]


REQUEST = np.dtype(
    [
        ("arrival_s", np.float64),
        ("first_s", np.float64),  # time of its first token
        ("last_s", np.float64),  # and of its last
        ("busy_s", np.float64),  # how long the busiest stage had worked with the step of its first token
        ("prompt", np.int64),
        ("output", np.int64),  # its tokens where a decode round gives one; with drafted tokens its first and its rounds
        ("answer", np.int64),  # its tokens
        ("uncounted", np.int64),  # tokens in the cache, on average, beyond one for each round
        ("phase", np.int64),
        ("to_prefill", np.int64),  # tokens its next one needs in the cache: the prompt; after an eviction all so far
        ("cached", np.int64),  # tokens of its prompt that are in the cache before it starts
        ("shared", np.int64),  # those of them that lie in the cache once for all requests
        ("prefilled", np.int64),  # how many of them are
        ("finish_round", np.int64),  # decode round of its slot that gives its last token
        ("older", np.int64),  # neighbours in its slot, in order of admission
        ("newer", np.int64),
        ("before", np.int64),  # neighbours in the list of those that finish in the same round
        ("after", np.int64),
        ("follower", np.int64),  # the next new request in its line
        ("group", np.int64),  # attention group that it was given to
    ]
)

# A slot is a batch that goes through the pipeline as one; a replica has as many slots as stages.
SLOT = np.dtype(
    [
        ("ready_s", np.float64),  # when its step in flight leaves the pipeline
        ("busy_s", np.float64),  # how long the busiest stage had worked when that step began, the step included
        ("in_flight", np.int64),  # 1 while a step is under way
        ("decodes", np.int64),  # 1 when that step gives the decoding requests a token
        ("n_finishing", np.int64),  # prompts that complete in that step
        ("rounds", np.int64),  # decode rounds done
        ("running", np.int64),  # requests it holds
        ("decoding", np.int64),  # those of them that get a token in every round
        ("kv_sum", np.int64),  # their tokens in the cache
        ("newest", np.int64),  # request admitted last
        ("queue_first", np.int64),  # ring of requests whose prompt is not complete
        ("queue_length", np.int64),
    ]
)


class Lists(NamedTuple):
    """Lists of requests of each slot: ring of prompts under way, prompts that complete in the step in flight, and the
    first request that finishes in a decode round ([slot, round modulo columns])."""

    queue: IntArray
    finishing: IntArray
    ends: IntArray


class Stages(NamedTuple):
    """Pipeline stages: when each is free; by kind of stage how long it has worked, and room for what a step takes."""

    free_s: FloatArray
    busy_s: FloatArray
    attention_s: FloatArray
    step_s: FloatArray


def new_requests(
    arrival_s: FloatArray,
    prompt: IntArray,
    output: IntArray,
    cached: IntArray | None,
    rounds: IntArray | None = None,
    shared: IntArray | None = None,
) -> RecordArray:
    """Requests that nobody has looked at yet; of each prompt at least the last token is computed (vLLM).

    ``rounds`` give each its tokens after the first, one a round unless given. Rounds that give several leave, on average over
    an answer, half of the tokens beyond one a round in the cache uncounted.
    """
    requests = np.zeros(len(prompt), dtype=REQUEST)
    requests["arrival_s"] = arrival_s
    requests["first_s"] = requests["last_s"] = np.nan
    requests["prompt"] = requests["to_prefill"] = prompt
    requests["output"] = requests["answer"] = output
    if rounds is not None:
        requests["output"] = 1 + rounds
        requests["uncounted"] = (output - 1 - rounds) // 2
    if cached is not None:
        requests["cached"] = np.minimum(cached, prompt - 1)
    if shared is not None:
        requests["shared"] = shared
    for link in ("older", "newer", "before", "after"):
        requests[link] = NOBODY
    requests["follower"] = np.arange(1, len(prompt) + 1)
    return requests


def new_slots(slots: int) -> RecordArray:
    """Empty slots."""
    records = np.zeros(slots, dtype=SLOT)
    records["newest"] = NOBODY
    return records


def new_stages(stages: int, kinds: int) -> Stages:
    """Stages that have not worked yet."""
    return Stages(np.zeros(stages), np.zeros(kinds), np.zeros(kinds), np.zeros(kinds))


def new_lists(slots: int, *, sequences: int, max_output: int) -> Lists:
    """Empty lists of slots for up to ``sequences`` requests each."""
    return Lists(
        queue=np.zeros((slots, sequences), dtype=np.int64),
        finishing=np.zeros((slots, sequences), dtype=np.int64),
        ends=np.full((slots, max_output + 1), NOBODY, dtype=np.int64),
    )


@compiled
def admit(requests: RecordArray, slots: RecordArray, queue: IntArray, slot: int, request: int) -> None:
    """Put a waiting request at the end of a slot's prompt queue."""
    requests[request].phase = PREFILLING
    requests[request].prefilled = requests[request].cached
    newest = slots[slot].newest
    requests[request].older = newest
    requests[request].newer = NOBODY
    if newest != NOBODY:
        requests[newest].newer = request
    slots[slot].newest = request
    slots[slot].running += 1
    queue[slot, (slots[slot].queue_first + slots[slot].queue_length) % queue.shape[1]] = request
    slots[slot].queue_length += 1


@compiled
def start_decoding(requests: RecordArray, slots: RecordArray, ends: IntArray, slot: int, request: int, remaining: int) -> None:
    """Let a request whose prompt is in the cache get ``remaining`` more tokens, one a round."""
    last_round = slots[slot].rounds + remaining
    column = last_round % ends.shape[1]
    first = ends[slot, column]
    requests[request].phase = DECODING
    requests[request].finish_round = last_round
    requests[request].before = NOBODY
    requests[request].after = first
    if first != NOBODY:
        requests[first].before = request
    ends[slot, column] = request
    slots[slot].decoding += 1
    slots[slot].kv_sum += requests[request].to_prefill + requests[request].uncounted


@compiled
def leave(requests: RecordArray, slots: RecordArray, ends: IntArray, slot: int, request: int) -> None:
    """Take a running request out of its slot, finished or evicted; the prompt queue is the caller's."""
    older, newer = requests[request].older, requests[request].newer
    if newer != NOBODY:
        requests[newer].older = older
    else:
        slots[slot].newest = older
    if older != NOBODY:
        requests[older].newer = newer
    slots[slot].running -= 1
    if requests[request].phase == DECODING:
        _forget_end(requests, ends, slot, request)
        slots[slot].decoding -= 1
        slots[slot].kv_sum -= tokens_in_cache(requests, slots, slot, request)


@compiled
def tokens_in_cache(requests: RecordArray, slots: RecordArray, slot: int, request: int) -> int:
    """Tokens of a decoding request in the cache: all but the newest token."""
    remaining = requests[request].finish_round - slots[slot].rounds
    given = requests[request].output - 1 - remaining
    return requests[request].prompt + requests[request].uncounted + given  # type: ignore[no-any-return]


@compiled
def _forget_end(requests: RecordArray, ends: IntArray, slot: int, request: int) -> None:
    before, after = requests[request].before, requests[request].after
    if after != NOBODY:
        requests[after].before = before
    if before != NOBODY:
        requests[before].after = after
    else:
        ends[slot, requests[request].finish_round % ends.shape[1]] = after


@compiled
def busiest(stages: Stages) -> float:
    """Return the seconds that the busiest stage has worked."""
    most = 0.0
    for kind in range(len(stages.busy_s)):
        most = max(most, stages.busy_s[kind])
    return most


@compiled
def worked_on_average(stages: Stages, kinds: IntArray) -> float:
    """Return the seconds that a mean stage has worked."""
    total = 0.0
    for stage in range(len(kinds)):
        total += stages.busy_s[kinds[stage]]
    return total / len(kinds)


@compiled
def pass_stages(stages: Stages, kinds: IntArray, now: float) -> float:
    """Let a step pass every stage as soon as it is free, each for the time of its kind; returns when it leaves the last."""
    for kind in range(len(stages.step_s)):
        stages.busy_s[kind] += stages.step_s[kind]
    end = now
    for stage in range(len(kinds)):
        end = max(end, stages.free_s[stage]) + stages.step_s[kinds[stage]]
        stages.free_s[stage] = end
    return end
