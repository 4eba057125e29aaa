"""Prefill and decode pools, as a form of a serving plan."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.costmodels.queueing.simulation.disaggregated import DisaggregatedResult
from meshwright.costmodels.queueing.simulation.replica import LoadTimeline, timeline
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, SearchStats
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals
from meshwright.solver.serving.engines.layouts import layouts, prefill_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.form import Form, Misfit
from meshwright.solver.serving.forms.pools.answer import pools_plan, predicted_certificate
from meshwright.solver.serving.forms.pools.planning import search
from meshwright.solver.serving.forms.pools.pools import MeasuredPools, PhaseKind, PlacedPools, PoolsSimulator, phase_evaluator
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.certificates import energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.workers.given import candidate_of
from meshwright.solver.serving.workers.goodput import RATE_GRID, step_below
from meshwright.solver.serving.workers.reasons import memory_shortfall, missed_figures
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described

# The cases in which prefill and decode pools are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for pools beside what they are not searched for. Raises WorkloadError."""
    if ServingMode.DISAGGREGATED not in request.search.modes:
        return
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated over prefill and decode pools",
            given=arrivals.process,
            allowed="poisson, gamma, trace; or search.modes [aggregated]",
        )
    if request.objective is Objective.THROUGHPUT and not isinstance(arrivals, PoissonArrivals):
        raise WorkloadError(
            "the goodput of prefill and decode pools is searched for Poisson arrivals only",
            given=arrivals.process,
            allowed="poisson; or search.modes [aggregated]; or another objective",
        )


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space: none, its proof says it."""
    return ""


# A plan of two pools as it was given: predicted anew, or simulated.


def predict(request: ServingRequest, plan: Plan, layout: Pools) -> Plan | Misfit:
    """The plan's pools with every figure predicted anew; or the reason, when a pool does not fit in memory or
    a target is missed. Objective throughput: figures are at the plan's own rate, or at the request's where that is missed.

    Raises PlanFileError when the plan does not belong to the request.
    """
    given = GivenPools(request, layout)
    stats = SearchStats(candidates=1, evaluated=1, seconds=0.0)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        return Misfit(shortfall, stats)
    evaluator, loads = given.evaluator, [given.evaluator.traffic.load]
    if request.objective is Objective.THROUGHPUT and plan.predicted is not None:
        # Goodputs are rates of a grid; tokens per second have their rounding.
        claimed = RATE_GRID ** step_below(plan.predicted.tokens_per_s / evaluator.output.mean)
        loads.insert(0, max(loads[0], claimed))
    found = given.measured(loads[0])
    if not found.keeps and loads[-1] < loads[0]:
        found = given.measured(loads[-1])
    if not found.keeps:
        busy = max(found.placed.prefill.utilisation, found.placed.decode.utilisation)
        reason = missed_figures(evaluator.promised, ttft=found.ttft, tpot=found.tpot, utilisation=busy)
        return Misfit(reason, stats)
    certificate = predicted_certificate(request, found)
    return pools_plan(request, found, evaluator=evaluator, certificate=certificate, stats=stats, notes=())


class GivenPools:
    """The pools that a plan describes; raises PlanFileError when they are none of the request."""

    def __init__(self, request: ServingRequest, layout: Pools):
        self._request = request
        self.evaluator = Evaluator(request.workload, promised_of(request, pools=True), request.search.seed)
        self._phases = {kind: phase_evaluator(kind, request) for kind in PhaseKind}
        self._workers: dict[PhaseKind, tuple[Candidate, Share]] = {}
        self._firsts: dict[PhaseKind, int] = {}
        for kind, workers in ((PhaseKind.PREFILL, layout.prefill_workers), (PhaseKind.DECODE, layout.decode_workers)):
            among = prefill_layouts if kind is PhaseKind.PREFILL else layouts
            self._workers[kind] = candidate_of(request, workers, self._phases[kind], among=among)
            self._firsts[kind] = min(devices.first for devices in workers.device_ranges)

    def memory_shortfall(self) -> Reason | None:
        """Return the memory that a pool lacks to hold its longest request; None where both hold theirs."""
        for kind, (candidate, _) in self._workers.items():
            longest = self._phases[kind].longest_request
            if candidate.limits.kv_tokens < longest:
                limits = {"step_tokens": candidate.step_tokens, "sequences": candidate.sequences}
                return memory_shortfall(candidate.engine, **limits, tokens=longest)
        return None

    def measured(self, load: float) -> MeasuredPools:
        """Both pools simulated together under a load."""
        return PoolsSimulator(self._request.cluster, self.evaluator, self.evaluator.promised).measure(self._under(load), load)

    def simulated(self) -> DisaggregatedResult:
        """Both pools under the request's load, every request's times."""
        load = self.evaluator.traffic.load
        return PoolsSimulator(self._request.cluster, self.evaluator, self.evaluator.promised).run(self._under(load), load)

    def _under(self, load: float) -> PlacedPools:
        """The pools, each measured by itself under a load."""
        measured = [
            self._phases[kind].measure_fully(candidate, replace(share, load=load))
            for kind, (candidate, share) in self._workers.items()
        ]
        prefill, decode = measured
        output_tokens = self.evaluator.output.mean
        energy_j = sum(
            energy_per_token_j(found, self._phases[kind], output_tokens=output_tokens)
            for kind, found in ((PhaseKind.PREFILL, prefill), (PhaseKind.DECODE, decode))
        )
        return PlacedPools(prefill, decode, self._firsts[PhaseKind.PREFILL], self._firsts[PhaseKind.DECODE], energy_j)


# Two pools of a plan that was given, simulated together.


def simulate(request: ServingRequest, layout: Pools) -> ServingSimulation:
    """Both pools together. The timeline is of a mean decode worker: requests that wait are all those without a first token."""
    given = GivenPools(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    result = given.simulated()
    line, workers = timeline([result.whole], intervals=INTERVALS), len(result.decode)
    busy = timeline(result.decode, intervals=INTERVALS).busy
    per_worker = LoadTimeline(line.end_s, line.waiting / workers, line.decoding / workers, busy)
    return described(given.evaluator, result.whole, per_worker, alike=1)


FORM = Form("pools", Pools, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
