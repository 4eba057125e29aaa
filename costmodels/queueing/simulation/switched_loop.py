"""The compiled core of the simulation of a worker that switches layouts: prompts in one phase, answers in the next."""

from __future__ import annotations

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.queueing.simulation.engine_state import (
    FloatArray,
    IntArray,
    RecordArray,
    busiest,
    worked_on_average,
)
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, is_missed
from meshwright.costmodels.queueing.simulation.switched_answers import answer
from meshwright.costmodels.queueing.simulation.switched_prompts import compute_prompts
from meshwright.costmodels.queueing.simulation.switched_state import (
    BUFFERED,
    DECODE_S,
    PHASES,
    PREFILL_S,
    SENT,
    STAGED,
    SWITCHING_S,
    Half,
    Staged,
    Switching,
    is_over,
)


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
