"""The layouts that come nearest to what a request asks: changes of a request without a plan are looked for among them.

The analytic model puts all layouts of the space in order, without a simulation. A request that names the first of them has a
part of the space of the request itself, whose plan is therefore no worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.planning import asked_of, require_servable
from meshwright.solver.serving.promise.candidates import MAX_UTILISATION, Candidate
from meshwright.solver.serving.promise.question import Question, Refused, expected_strain, ordering_candidate, usable_candidates
from meshwright.solver.serving.workers.goodput import expected_rate
from meshwright.solver.suggestions import RequestChange

Change = RequestChange[ServingRequest]

NEAREST = 3
"""Layouts that are looked at: with three, each change for seeds 0 to 19 of benchmarks/advice.py is reached."""

FAR = 0.5
"""Share of a load below which a change is not tried: the analytic model errs by less than a factor of two
(`solver.serving.workers.goodput` begins with rates that far apart)."""


def among_nearest(ladders: Iterable[Iterable[Change]]) -> Iterator[Iterator[Change]]:
    """Yield the ladders with each change to be solved among its nearest layouts, without those that are expected to be far from
    keeping what they ask."""
    for ladder in ladders:
        yield (near for change in ladder if (near := _near(change)) is not None)


def _near(change: Change) -> Change | None:
    """The change among its nearest layouts, as it is where a plan of it was met; None where it is far from what it asks."""
    near = change.request if change.is_met else nearest_to(change.request)
    return None if near is None else replace(change, request=near)


def nearest_to(request: ServingRequest) -> ServingRequest | None:
    """Return the request that names its layouts of the highest loads within the targets, as the analytic model expects them;
    None where not even `FAR` of the load is expected of any. What can't be planned at all is returned as it is."""
    with calibrations_in_force(request.calibrations):
        try:
            require_servable(request)
        except InvalidInputError:
            return request
        question = asked_of(request, never_stop, ignore_progress).question
        loads = {engine.key: _expected_load(question, engine) for engine in question.engines}
    ordered = sorted(question.engines, key=lambda engine: (-loads[engine.key], engine.key))[:NEAREST]
    if not ordered or loads[ordered[0].key] < FAR * question.load:
        return None
    return _naming(request, [engine for engine in ordered if loads[engine.key] > 0.0])


def shares_taken(request: ServingRequest) -> tuple[float, float] | None:
    """Return the shares of the targets of TTFT and TPOT that the nearest layout takes on all devices at the load asked for,
    above 1 of one that is missed; 0 of one that is not set. None where the load outruns every layout that was simulated."""
    with calibrations_in_force(request.calibrations):
        question = asked_of(request, never_stop, ignore_progress).question
        evaluator, found = question.evaluator, list[tuple[float, float]]()
        for candidate, share in _least_strained(question):
            measured = evaluator.measure_fully(candidate, share)
            if evaluator.traffic.is_closed or measured.utilisation <= MAX_UTILISATION:
                found.append(evaluator.promised.shares(ttft_s=measured.ttft.high, tpot_s=measured.tpot.high))
    return min(found, key=max, default=None)


def _expected_load(question: Question, engine: Engine) -> float:
    """The load that all devices are expected to keep within the targets; 0 where a request alone is late. Of clients of a
    closed loop those asked for, less by as much as they strain the targets."""
    evaluator, counts = question.evaluator, question.counts(engine, 1, engine.layout.most_replicas)
    usable = usable_candidates(evaluator, engine)
    if isinstance(usable, Refused) or not counts:
        return 0.0
    if evaluator.traffic.is_closed:
        share = Share(question.load, counts[-1])
        return question.load / expected_strain(evaluator, ordering_candidate(usable), share)
    return counts[-1] * expected_rate(evaluator, usable)


def _least_strained(question: Question) -> list[tuple[Candidate, Share]]:
    """The candidates that are expected to miss their targets by least at the load asked for, of the engines that do so."""
    evaluator, engines = question.evaluator, list[tuple[float, Engine, Share]]()
    for engine in question.engines:
        counts, candidates = question.counts(engine, 1, engine.layout.most_replicas), evaluator.candidates(engine)
        if counts and candidates:
            share = Share(question.load, counts[-1])
            engines.append((expected_strain(evaluator, ordering_candidate(candidates), share), engine, share))
    engines.sort(key=lambda each: (each[0], each[1].key))
    strains = [
        (expected_strain(evaluator, candidate, share), candidate, share)
        for _, engine, share in engines[:NEAREST]
        for candidate in evaluator.candidates(engine)
    ]
    strains.sort(key=lambda each: (each[0], each[1].key))
    return [(candidate, share) for _, candidate, share in strains[:NEAREST]]


def _naming(request: ServingRequest, engines: list[Engine]) -> ServingRequest:
    """The request that names the degrees of some engines, where each means the same as unnamed."""
    layouts = [engine.layout for engine in engines]
    narrowest = min(group.node.devices_per_node for group in request.cluster.groups)
    # A tp that is named may span nodes, one that is not may not.
    if not layouts or max(layout.grid.tp for layout in layouts) > narrowest:
        return request
    grids = [layout.grid for layout in layouts]
    search = replace(
        request.search,
        tp=tuple(sorted({grid.tp for grid in grids})),
        kvp=tuple(sorted({grid.kvp for grid in grids})),
        attention_dp=tuple(sorted({grid.attention_dp for grid in grids})),
        ep=tuple(sorted({grid.ep for grid in grids})),
        pp=tuple(sorted({layout.pp for layout in layouts})),
    )
    return replace(request, search=search)
