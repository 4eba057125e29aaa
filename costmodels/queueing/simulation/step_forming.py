"""The forming of a step of the simulated engine: admission, prompt chunks, eviction, and what attention costs."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from meshwright.costmodels.queueing.simulation.engine_state import (
    DECODING,
    NOBODY,
    WAITING,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    admit,
    compiled,
    leave,
    tokens_in_cache,
)

CHUNKED, PREFILL_ONLY, WHOLE, CHUNKS_ONLY = range(4)
ADMIT_RESERVED, ADMIT_UNTIL_FULL = 0, 1

# Counters that the compiled functions share, as indices of one array.
KNOWN, ARRIVED, NEXT_NEW, EVICTED, KV_USED, COMPLETED, MISSED_TTFT, MISSED_TPOT, OVERDUE, PEAK, EVICTIONS, RUNNING = range(12)
COUNTERS = 12


Cell = tuple[int, float]
"""Cell of a grid, and where in it (0 to 1)."""


class Tables(NamedTuple):
    """The arrays of StepTimes, of each kind of stage; ``kinds`` are those of the stages, ``query_tokens`` a sequence's."""

    tokens_s: FloatArray
    logits_s: FloatArray
    decode_s: FloatArray
    kv_grid: FloatArray
    prefill_s_per_pair: FloatArray
    query_grid: FloatArray
    prefix_grid: FloatArray
    prefill_launch_s: FloatArray
    least_prompt_s: FloatArray
    kinds: IntArray
    query_tokens: int


class SlotLimits(NamedTuple):
    """Batch limits; sequences are those of one slot, tokens of the cache those of the replica without what all requests
    share."""

    sequences: int
    step_tokens: int
    kv_tokens: int
    scheduling: int
    admission: int


@compiled
def take_prompts(
    tables: Tables,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    slot: int,
    counters: IntArray,
    evicted: IntArray,
    attention_s: FloatArray,
    now: float,
    budget: int,
) -> int:
    """Take prompt tokens into the step, first of requests under way, then of waiting ones; returns how many."""
    taken = 0
    while taken < budget:
        if slots[slot].queue_length == 0:
            request = admissible(limits, requests, slots, slot, counters, evicted, now, budget - taken)
            if request == NOBODY:
                break
            _remove_from_waiting(requests, counters, request)
            counters[KV_USED] += tokens_at_admission(limits, requests, request)
            admit(requests, slots, lists.queue, slot, request)
            counters[RUNNING] += 1
            counters[PEAK] = max(counters[PEAK], counters[RUNNING])
        taken += take_chunk(tables, requests, slots, lists, slot, attention_s, budget - taken)
    return taken


@compiled
def prompts_apart(limits: SlotLimits) -> bool:
    """Return True if no step holds both prompts and decoding sequences."""
    return limits.scheduling == PREFILL_ONLY or limits.scheduling == CHUNKS_ONLY


@compiled
def take_chunk(
    tables: Tables, requests: RecordArray, slots: RecordArray, lists: Lists, slot: int, attention_s: FloatArray, budget: int
) -> int:
    """Take what fits of the first prompt in a slot's queue into the step; returns how many tokens."""
    request = lists.queue[slot, slots[slot].queue_first]
    chunk = min(requests[request].to_prefill - requests[request].prefilled, budget)
    _add_prefill_attention(tables, attention_s, chunk, requests[request].prefilled)
    requests[request].prefilled += chunk
    if requests[request].prefilled == requests[request].to_prefill:
        slots[slot].queue_first = (slots[slot].queue_first + 1) % lists.queue.shape[1]
        slots[slot].queue_length -= 1
        lists.finishing[slot, slots[slot].n_finishing] = request
        slots[slot].n_finishing += 1
    return chunk  # type: ignore[no-any-return]


@compiled
def admissible(
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    slot: int,
    counters: IntArray,
    evicted: IntArray,
    now: float,
    room: int,
) -> int:
    """The request that is next in line, if it may start now: evicted ones first, then by arrival."""
    if slots[slot].running >= limits.sequences:
        return NOBODY
    if counters[EVICTED] > 0:
        request = evicted[counters[EVICTED] - 1]
    else:
        request = counters[NEXT_NEW]
        if request >= counters[KNOWN] or requests[request].arrival_s > now:
            return NOBODY
    if counters[KV_USED] + tokens_at_admission(limits, requests, request) > limits.kv_tokens:
        return NOBODY
    cut = limits.scheduling == CHUNKED or limits.scheduling == CHUNKS_ONLY
    if not cut and requests[request].to_prefill - requests[request].cached > room:
        return NOBODY
    return request  # type: ignore[no-any-return]


@compiled
def _remove_from_waiting(requests: RecordArray, counters: IntArray, request: int) -> None:
    if counters[EVICTED] > 0:
        counters[EVICTED] -= 1
    else:
        counters[NEXT_NEW] = requests[request].follower


@compiled
def tokens_at_admission(limits: SlotLimits, requests: RecordArray, request: int) -> int:
    """Cache tokens that a request takes when it starts, beside those that all share."""
    if limits.admission == ADMIT_RESERVED:
        return requests[request].prompt + requests[request].answer - requests[request].shared  # type: ignore[no-any-return]
    return requests[request].to_prefill - requests[request].shared  # type: ignore[no-any-return]


@compiled
def evict_until_round_fits(
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    slot: int,
    counters: IntArray,
    evicted: IntArray,
) -> None:
    """Evict the newest requests of the slot until its decoding ones have room for a token each."""
    while slots[slot].decoding > 0 and counters[KV_USED] + slots[slot].decoding > limits.kv_tokens:
        request = slots[slot].newest
        if requests[request].phase == DECODING:
            in_cache = tokens_in_cache(requests, slots, slot, request)
            counters[KV_USED] -= in_cache - requests[request].shared
            leave(requests, slots, ends, slot, request)
            # The newest token has no key and value yet, and comes back as part of what is prefilled.
            requests[request].to_prefill = in_cache + 1
        else:
            counters[KV_USED] -= requests[request].to_prefill - requests[request].shared
            slots[slot].queue_length -= 1
            leave(requests, slots, ends, slot, request)
        requests[request].phase = WAITING
        requests[request].prefilled = 0
        evicted[counters[EVICTED]] = request
        counters[EVICTED] += 1
        counters[EVICTIONS] += 1
        counters[RUNNING] -= 1


@compiled
def decode_attention_s(tables: Tables, kind: int, sequences: int, cell: Cell) -> float:
    """Decode attention of sequences on a kind of stage; ``cell`` is that of the tokens that they hold on average."""
    j, fraction = cell
    return tables.decode_s[kind, sequences, j] * (1.0 - fraction) + tables.decode_s[kind, sequences, j + 1] * fraction  # type: ignore[no-any-return]


@compiled
def _add_prefill_attention(tables: Tables, attention_s: FloatArray, query_tokens: int, prefix_tokens: int) -> None:
    """Add the attention of a chunk to the time of each kind of stage."""
    i, fi = grid_cell(tables.query_grid, query_tokens)
    j, fj = grid_cell(tables.prefix_grid, prefix_tokens)
    pairs = query_tokens * (prefix_tokens + (query_tokens + 1) / 2)
    for kind in range(len(attention_s)):
        table = tables.prefill_s_per_pair[kind]
        low = table[i, j] * (1.0 - fj) + table[i, j + 1] * fj
        high = table[i + 1, j] * (1.0 - fj) + table[i + 1, j + 1] * fj
        attention_s[kind] += (low * (1.0 - fi) + high * fi) * pairs


@compiled
def grid_cell(grid: FloatArray, value: float):  # type: ignore[no-untyped-def]
    """Cell of an ascending grid that a value falls in, and where in it; values outside take the nearest end."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= value:
            low = middle
        else:
            high = middle
    fraction = (value - grid[low]) / (grid[low + 1] - grid[low])
    return low, min(max(fraction, 0.0), 1.0)


# The rules by which engines form steps.


class Scheduling(StrEnum):
    """The rule by which the engine forms a step.

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
        """True if no step holds both prompts and decoding sequences."""
        return self in (Scheduling.PREFILL_FIRST, Scheduling.CHUNKS_FIRST)

    @property
    def cuts_prompts(self) -> bool:
        """True if prompts come in chunks."""
        return self in (Scheduling.CHUNKED_PREFILL, Scheduling.CHUNKS_FIRST)
