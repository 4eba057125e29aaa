"""The state of a worker that switches layouts: its two engines, their counters, and what both phases do with them."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.costmodels.queueing.simulation.engine_state import FloatArray, IntArray, Lists, RecordArray, Stages, compiled
from meshwright.costmodels.queueing.simulation.event_loop import through_pipeline
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, is_missed
from meshwright.costmodels.queueing.simulation.step_forming import COMPLETED, COUNTERS, MISSED_TPOT, Tables

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
