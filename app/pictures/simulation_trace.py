"""A serving simulation as a trace that https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of Chromium. One process holds the work of one worker: slices of the time that it works in each
interval, whose sum is its utilisation, and counters of requests that wait and decode. Another holds the requests, each from its
arrival to its first token and from there to its last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.app.base.quoting import json_text, readable
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.service.load import own_load
from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.costmodels.queueing.results import RequestTimes
from meshwright.costmodels.queueing.simulation.replica import LoadTimeline
from meshwright.solver.api import simulate
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, ScheduleArrivals, TraceArrivals
from meshwright.solver.serving.workers.simulation import ServingSimulation

MOST_REQUESTS = 1000
"""Requests of a trace, those that are counted first: about 0.4 MB."""

_US_PER_S = 1e6
_DIGITS = 3
_WORKER, _REQUESTS = 0, 1
"""The processes of a trace; those of several kinds of workers follow each other in pairs."""


def simulation_trace(document: Mapping[str, Any]) -> dict[str, str]:
    """Return, as ``text``, the trace of a serving plan document under its own load; raises as ``load_course``."""
    answered = read_plan_document(document["plan"])
    request = answered.request
    if not isinstance(request, ServingRequest):
        raise WorkloadError("only serving has a load", given="a training plan", allowed="a serving plan")
    if not answered.plan.feasible:
        raise InfeasibleError("there is no plan: nothing can be put under load")
    arrivals = request.workload.arrivals
    if not isinstance(arrivals, ClosedArrivals | TraceArrivals | ScheduleArrivals):
        rate = own_load(answered, request)
        request = replace(request, workload=replace(request.workload, arrivals=replace(arrivals, requests_per_s=rate)))
    return {"text": simulation_trace_text(simulate(request, answered.plan), title=answered.plan.model)}


def simulation_trace_text(simulated: ServingSimulation, *, title: str) -> str:
    """Return the trace of a simulation."""
    parts = [(each.name, each.simulated) for each in simulated.kinds] or [("", simulated)]
    events = [event for number, (name, part) in enumerate(parts) for event in _events(2 * number, name, part)]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": readable(title),
            "requests_per_s": simulated.requests_per_s,
            "utilisation": simulated.busy,
            "ttft_p95_s": simulated.ttft.p95.value,
            "tpot_p95_s": None if simulated.tpot is None else simulated.tpot.p95.value,
        },
    }
    return json_text(document, indent=None) + "\n"


def _events(first_pid: int, name: str, part: ServingSimulation) -> Iterator[dict[str, Any]]:
    of_kind = f" of {name}" if name else ""
    for pid, said in ((_WORKER, f"one worker{of_kind}"), (_REQUESTS, f"requests{of_kind}")):
        yield {"name": "process_name", "ph": "M", "pid": first_pid + pid, "tid": 0, "args": {"name": said}}
    if part.timeline is not None:
        yield from _work(first_pid + _WORKER, part.timeline)
    if part.times is not None:
        yield from _requests(first_pid + _REQUESTS, part.times)


def _work(pid: int, line: LoadTimeline) -> Iterator[dict[str, Any]]:
    width_s = line.end_s / len(line.busy)
    for index, (waiting, decoding, busy) in enumerate(zip(line.waiting, line.decoding, line.busy, strict=True)):
        start_us, works_us = _us(index * width_s), round(float(busy) * width_s * _US_PER_S, _DIGITS)
        yield {"name": "works", "cat": "work", "ph": "X", "pid": pid, "tid": 0, "ts": start_us, "dur": works_us}
        counted = {"waiting": round(float(waiting), 6), "decoding": round(float(decoding), 6)}
        yield {"name": "requests", "ph": "C", "pid": pid, "tid": 0, "ts": start_us, "args": counted}


def _requests(pid: int, times: RequestTimes) -> Iterator[dict[str, Any]]:
    ended = np.flatnonzero(times.counted & np.isfinite(times.first_s) & np.isfinite(times.last_s))
    for number in ended[:MOST_REQUESTS]:
        arrived, first, last = (float(each[number]) for each in (times.arrival_s, times.first_s, times.last_s))
        known = {"output_tokens": int(times.output_tokens[number]), "ttft_ms": round((first - arrived) * 1e3, _DIGITS)}
        for said, start_s, end_s in (("until the first token", arrived, first), ("answer", first, last)):
            event = {"name": said, "cat": "request", "id": int(number), "pid": pid, "tid": 0}
            yield event | {"ph": "b", "ts": _us(start_s), "args": known}
            yield event | {"ph": "e", "ts": _us(end_s)}


def _us(time_s: float) -> float:
    return round(time_s * _US_PER_S, _DIGITS)
