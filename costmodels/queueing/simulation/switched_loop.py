"""The compiled core of the simulation of a worker that switches layouts: prompts in one phase, answers in the next."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.queueing.simulation import event_loop, switched_answers, switched_prompts, switched_state
from meshwright.costmodels.queueing.simulation.engine_state import (
    FloatArray,
    IntArray,
    RecordArray,
    busiest,
    compiled_whole,
    source_digest,
    worked_on_average,
)
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, is_missed
from meshwright.costmodels.queueing.simulation.step_forming import KNOWN, PEAK
from meshwright.costmodels.queueing.simulation.switched_answers import answer
from meshwright.costmodels.queueing.simulation.switched_prompts import compute_prompts
from meshwright.costmodels.queueing.simulation.switched_state import (
    BUFFERED,
    DECODE_S,
    PHASES,
    PREFILL_S,
    SENT,
    STAGED,
    STEPS,
    SWITCHED_COUNTERS,
    SWITCHING_S,
    TOTALS,
    Half,
    Staged,
    Switching,
    is_over,
)


def _compiled(sources: str):  # type: ignore[no-untyped-def]
    """The simulation, kept on disk once compiled; see ``event_loop``."""

    @kept_compiled
    def run(prefill, decode, switching, promise, requests, admitted_s):  # type: ignore[no-untyped-def]
        if len(sources) == 0:
            raise ValueError("the digest is part of the key")
        counters = np.zeros(SWITCHED_COUNTERS, dtype=np.int64)
        counters[KNOWN] = len(requests)
        staged = Staged(np.zeros(len(requests), dtype=np.int64), np.zeros(len(requests)))
        totals = np.zeros(TOTALS)
        missed, now = _run(prefill, decode, switching, promise, requests, admitted_s, staged, counters, totals)
        busy_s = busiest(prefill.stages) + busiest(decode.stages)
        worked_s = worked_on_average(prefill.stages, prefill.tables.kinds)
        worked_s += worked_on_average(decode.stages, decode.tables.kinds)
        return missed, now, busy_s, worked_s, counters[PEAK], counters[STEPS], counters[PHASES], totals

    return run


@compiled_whole
def _run(  # type: ignore[no-untyped-def]
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
    """Phases in turn until every counted request is answered, or a target is sure to be missed; returns (missed, duration)."""
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
    return is_missed(counters, promise), now


PARTS = (*event_loop.PARTS, event_loop, switched_state, switched_prompts, switched_answers)
"""Modules whose code ends up in the compiled simulation."""

run = _compiled(source_digest(*PARTS, __file__))
