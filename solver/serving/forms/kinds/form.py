"""Several kinds of workers, as a form of a serving plan."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import WeightedObservations, mixture_mean, mixture_percentile
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import PoissonArrivals, ScheduleArrivals
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.kinds.answer import token_parts
from meshwright.solver.serving.forms.kinds.given import given_kinds, predict
from meshwright.solver.serving.forms.kinds.planning import search
from meshwright.solver.serving.workers.simulation import (
    PROBABILITIES,
    SPREAD,
    Distribution,
    KindSimulation,
    ServingSimulation,
    described,
    missed_targets,
    simulated_replicas,
    whole_requests,
)

# The cases in which several kinds of workers are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for several kinds of workers beside what these are not searched for. Raises WorkloadError."""
    search, workload = request.search, request.workload
    if search.worker_kinds == 1:
        return
    refused = (
        (not isinstance(workload.arrivals, PoissonArrivals | ScheduleArrivals), workload.arrivals.process, "poisson, schedule"),
        (request.objective is Objective.ENERGY, "objective energy", "devices, cost, throughput"),
        (ServingMode.AGGREGATED not in search.modes, "search.modes [disaggregated]", "search.modes with aggregated"),
        (search.frontier is FrontierScope.SWEPT, "search.frontier swept", FrontierScope.VISITED.value),
    )
    for is_so, given, allowed in refused:
        if is_so:
            raise WorkloadError(
                "plans of several kinds of workers are not searched for this",
                given=given,
                allowed=f"{allowed}; or search.worker_kinds 1",
            )


_SPACE = (
    "; up to {kinds} kinds of workers at once, each of which keeps the targets by itself at its share of the arrivals, drawn "
    "at random, its replicas at rates of a grid of 1% that one of them sustains (simulated down to half); kinds of a node "
    "group lie one after another, widest stages first, and the best numbers of replicas are those of an exact knapsack"
)


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space."""
    return _SPACE.format(kinds=request.search.worker_kinds) if request.search.worker_kinds > 1 else ""


def simulate(request: ServingRequest, layout: Kinds) -> ServingSimulation:
    """Each kind by itself, and percentiles of all requests: those of a kind count by its share."""
    ran, kinds = [], []
    for kind, own in given_kinds(request, layout):
        evaluator, whole, line, alike = simulated_replicas(own, kind.replicas)
        ran.append((kind.share, whole))
        kinds.append(KindSimulation(_name(kind, own), kind.share, described(evaluator, whole, line, alike=alike)))
    first = [WeightedObservations(share, run.ttft_s) for share, run in ran]
    last, later = [WeightedObservations(share, run.end_to_end_s) for share, run in ran], token_parts(ran)
    law = evaluator.promised.law
    ttft, tpot = _of_all(first).measured(law.ttft), _of_all(later).measured(law.tpot) if later else None
    of_kinds = [kind.simulated for kind in kinds]
    replicas = [kind.replicas.load.replicas for kind in layout.kinds]
    return ServingSimulation(
        requests=sum(each.requests for each in of_kinds),
        counted=sum(each.counted for each in of_kinds),
        requests_per_s=sum(each.requests_per_s for each in of_kinds),
        output_tokens_per_s=sum(each.output_tokens_per_s for each in of_kinds),
        ttft=ttft,
        tpot=tpot,
        end_to_end=_of_all(last).measured(whole_requests(law)),
        timeline=None,
        busy=float(np.average([each.busy for each in of_kinds], weights=[kind.devices for kind in layout.kinds])),
        mean_batch=float(np.average([each.mean_batch for each in of_kinds], weights=replicas)),
        peak_running=max(each.peak_running for each in of_kinds),
        evictions=sum(each.evictions for each in of_kinds),
        missed=missed_targets(evaluator.promised, ttft, tpot),
        kinds=tuple(kinds),
    )


def _name(kind: WorkerKind, own: ServingRequest) -> str:
    """Words for a kind: "4 x tp 4 x pp 2 on new", the name of its node group last."""
    axes = kind.replicas.axes
    degrees = {"tp": axes.tp, "kvp": axes.kvp, "attention dp": axes.attention_dp, "ep": axes.ep, "pp": axes.pp}
    said = " x ".join(f"{n} {d}" for n, d in degrees.items() if d > 1 or n == "tp")
    first = kind.replicas.stages[0].devices[0].first
    return f"{kind.replicas.load.replicas} x {said} on {own.cluster.group_of(first).name}"


def _of_all(parts: list[WeightedObservations]) -> Distribution:
    spread_s = tuple(mixture_percentile(parts, percent / 100).value for percent in SPREAD)
    return Distribution(mixture_mean(parts), tuple(mixture_percentile(parts, p) for p in PROBABILITIES), spread_s)


FORM = Form("kinds", Kinds, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
