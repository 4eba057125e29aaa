"""Taking in a measured run: checked against its plan, stored once, and learned from in the same transaction."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import rfc8785
from sqlalchemy import Connection, Engine

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import DocumentError, FieldError, PlanNotFoundError
from meshwright.app.base.figures import counted
from meshwright.app.base.plan_words import Rates, mean_output, rates_of
from meshwright.app.base.solving import predict_at_rate
from meshwright.app.evidence.logs.matching import ANSWERED_OFF
from meshwright.app.requests.calibrations import read_calibration_document
from meshwright.app.requests.learned import RunGroup, run_group
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.service.replans import ReplanOptions, ReplanPolicy, ReplanService, ReplanWish
from meshwright.app.store.calibrations import CalibrationStore, KeptCalibration, change_of
from meshwright.app.store.engine import writing
from meshwright.app.store.idempotency import IdempotencyRepository
from meshwright.app.store.plans import PlanStore
from meshwright.app.store.principal import LOCAL, Principal
from meshwright.app.store.questions import QuestionFilter
from meshwright.app.store.runs import (
    FIGURES_OF,
    MeasuredRun,
    NewRun,
    RunOutcome,
    RunRepository,
    StoredRun,
    read_run,
    run_digest,
    run_document,
)
from meshwright.app.store.tables import DEFAULT_TENANT
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import LATENCY, RUN_CALIBRATION_SCHEMA, UNMEASURED_TIME
from meshwright.costmodels.fitting.calibration import LatencyPoint, learned_latency, learned_time
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.latency_law import HOST_STEP_SIGMA_S, OUTSIDE_SIGMA_S, LatencyLaw, latency_law
from meshwright.costmodels.version import COST_MODEL_VERSION
from meshwright.solver.answer.cluster_time import law_of
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import ServingRequest, TrainingRequest
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.training.space.implementation import implementation_of

FARTHEST = 100.0
"""A figure so many times over or under the predicted one is of another run, or in another unit."""


MARK_ONLY = ReplanOptions()
"""Plans that become stale are marked, no more."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A run that can be stored: what was measured, of which plan."""

    run: MeasuredRun
    row: NewRun


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of storing a run: its row, whether it is new, what was learned by it, and the id of the batch, if one was
    started."""

    row: StoredRun
    is_new: bool
    kept: KeptCalibration | None = None
    replan: str | None = None


class RunService:
    """One database's runs. Its methods block; call them in threads. Without ``replans`` none can be started."""

    def __init__(self, engine: Engine, replans: ReplanService | None = None):
        self._engine, self._replans = engine, replans

    def asked(self, document: object, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """What ``observation_row`` asks of a run's document, whose plan is stored; raises DocumentError or StoreError."""
        run = read_run(document)
        try:
            text = PlanStore(self._engine, tenant).get(run.plan)
        except PlanNotFoundError as error:
            fault = FieldError("plan", "no plan is stored under this digest", run.plan, None, "plan the request first")
            raise DocumentError("this run can't be used", (fault,)) from error
        return {"run": run_document(run), "plan": json.loads(text)}

    def add(
        self,
        observation: Observation,
        caller: Principal = LOCAL,
        *,
        key: str | None = None,
        options: ReplanOptions = MARK_ONLY,
    ) -> Observed:
        """Store a run unless it is stored already, and the calibration that is learned with it, in one transaction: plans that
        follow it become stale. ``key`` is the caller's idempotency key.

        Raises KeyReusedError where the key was used for another run, DocumentError for a webhook that may not be called,
        StoreError.
        """
        if self._replans is not None:
            self._replans.check_webhook(options.webhook)
        with writing(self._engine) as connection:
            row, is_new = RunRepository(self._engine, caller.tenant).add_with(connection, observation.row)
            if key is not None:
                self._note(connection, caller.tenant, key, observation)
            if not is_new:
                return Observed(row, is_new)
            kept = self._learn(connection, caller.tenant, RunGroup(row.cluster, row.profile))
            return Observed(row, is_new, kept, self._start_replan(connection, caller, kept, options))

    def _learn(self, connection: Connection, tenant: str, group: RunGroup) -> KeptCalibration | None:
        """Keep the calibration that all runs of a group teach together; None where they teach nothing."""
        runs = RunRepository(self._engine, tenant).of_group(connection, group.cluster, group.profile, limit=MOST_RUNS)
        calibration = learned_from(group, runs)
        return None if calibration is None else CalibrationStore(self._engine, tenant).keep_with(connection, calibration)

    def _start_replan(
        self, connection: Connection, caller: Principal, kept: KeptCalibration | None, options: ReplanOptions
    ) -> str | None:
        """The id of the batch that plans again what became stale, if one was asked for."""
        if self._replans is None or kept is None or not kept.is_new or options.policy is not ReplanPolicy.START:
            return None
        about = QuestionFilter(calibration=kept.row.key)
        wish = ReplanWish(about, cause=change_of(kept.row), version=kept.row.version, webhook=options.webhook)
        return self._replans.start(connection, caller, wish)

    def _note(self, connection: Connection, tenant: str, key: str, observation: Observation) -> None:
        fingerprint = f"sha256:{hashlib.sha256(observation.row.run.encode()).hexdigest()}"
        IdempotencyRepository(self._engine, tenant).note(connection, key, fingerprint, f"run:{observation.row.digest}")


def observation(run: MeasuredRun, answered: AnsweredRequest) -> Observation:
    """The run beside what was predicted of its plan; raises DocumentError where the two can't belong together."""
    plan, request = answered.plan, answered.request
    if not plan.feasible or plan.predicted is None or plan.layout is None:
        why = "infeasible" if plan.is_decided else "undecided, not found yet"
        raise _fault("plan", f"the plan is {why}: there is nothing to run", run.plan)
    _check_kind(run, plan.kind)
    predicted = _predicted(answered, _at_own_load(run, answered))
    for name, value in run.measured().items():
        _check_near(name, value, predicted.get(name))
    memory_bytes = predicted["device_memory_bytes"]
    if run.peak_memory_bytes is not None and run.peak_memory_bytes > memory_bytes:
        raise _fault("peak_memory_bytes", "a device of the cluster has less memory", str(run.peak_memory_bytes), memory_bytes)
    group = run_group(request_document(request))
    assert group is not None, "a resolved request names its hardware"
    return Observation(
        run,
        NewRun(
            digest=run_digest(run),
            created_at=datetime.now(UTC),
            cluster=group.cluster,
            profile=group.profile,
            model=plan.model,
            plan=run.plan,
            kind=plan.kind,
            outcome=run.outcome.value,
            run=compact_json(run_document(run)),
            predicted=compact_json(predicted | {"cost_model_version": COST_MODEL_VERSION}),
        ),
    )


def observation_row(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run and its plan, as documents, but for the moment; raises as ``observation``. A plan may have to be
    predicted at another rate, which takes its time: a service has it done by a child."""
    row = asdict(observation(read_run(document["run"]), read_plan_document(document["plan"])).row)
    return {name: value for name, value in row.items() if name != "created_at"}


def observation_of_row(document: Mapping[str, Any], row: Mapping[str, Any]) -> Observation:
    """Return the run of documents with the row that ``observation_row`` made of it."""
    return Observation(read_run(document["run"]), NewRun(created_at=datetime.now(UTC), **row))


def _at_own_load(run: MeasuredRun, answered: AnsweredRequest) -> Predicted:
    """Return the plan's figures at the load that was measured. A plan for throughput has its own at the highest rate."""
    return _RUNS[answered.request.workload.kind].at_own_load(run, answered.plan, answered.request)


def _of_a_step(run: MeasuredRun, plan: Plan, request: TrainingRequest) -> Predicted:
    assert plan.predicted is not None, "the plan is feasible"
    if run.requests_per_s is not None:
        given = f"{run.requests_per_s:g}"
        raise _fault("requests_per_s", "a training plan has no load of requests", given, remedy="leave it out")
    return plan.predicted


def _of_a_load(run: MeasuredRun, plan: Plan, request: ServingRequest) -> Predicted:
    assert plan.predicted is not None, "the plan is feasible"
    rate, rates = run.requests_per_s, rates_of(plan, request)
    if rate is None and rates is not None:
        rate = _untold_rate(run, rates, mean_output(request.workload))
    if rate is None and rates is None:
        return plan.predicted
    told = predict_at_rate(request, plan, rate)
    if told.reason is not None or told.predicted is None:
        why = "" if told.reason is None else f": {told.reason.message}"
        given = f"{rates.asked if rate is None and rates is not None else rate:g}"
        raise _fault("requests_per_s", f"nothing is predicted at this load{why}", given, remedy="plan for that load")
    return told.predicted


def _untold_rate(run: MeasuredRun, rates: Rates, output_tokens: float) -> float | None:
    """Return the rate that a run of a plan for throughput was measured at, which it does not say: the highest, or, as None, the
    one that was asked, by the tokens that came."""
    if run.tokens_per_s is None:
        return None
    came = run.tokens_per_s / output_tokens
    near = [rate for rate in (rates.asked, rates.most) if abs(came - rate) <= ANSWERED_OFF * rate]
    if not near:
        raise _fault(
            "tokens_per_s",
            "the run has another load than the plan's",
            f"{run.tokens_per_s:g}, which is {came:.4g} requests/s",
            f"{rates.asked:g} requests/s, as asked, or {rates.most:.4g}, the most",
            "say at which rate requests were sent (requests_per_s, --rate)",
        )
    nearest = min(near, key=lambda rate: abs(math.log(came / rate)))
    return None if nearest == rates.asked else nearest


def _predicted(answered: AnsweredRequest, figures: Predicted) -> dict[str, Any]:
    """Return the figures that the cost model gives the plan at a run's load, and the memory of the smallest device."""
    names = FIGURES_OF[answered.plan.kind]
    said = {name: value for name in names if (value := getattr(figures, name)) is not None}
    # What was learned before is taken out again: all runs of a cluster are compared with the same predictions.
    said |= _RUNS[answered.request.workload.kind].before_runs(answered.request, answered.plan, said)
    smallest = min(group.node.device.memory_bytes for group in answered.request.cluster.groups)
    return said | {"device_memory_bytes": smallest, "overhead_bytes": _overhead_bytes(answered.plan)}


def _steps_before_runs(request: TrainingRequest, plan: Plan, said: Mapping[str, float]) -> dict[str, float]:
    """Return the step time and the memory that are predicted of a plan where no run has been told."""
    law, memory = law_of(request), implementation_of(request.workload, request.search).memory
    unscaled = {"peak_memory_bytes": said["peak_memory_bytes"] / memory.scale}
    return unscaled if law is None else unscaled | {"step_time_s": said["step_time_s"] / law.scale}


def _before_runs(request: ServingRequest, plan: Plan, said: Mapping[str, float]) -> dict[str, float]:
    """Return the latencies that are predicted of a plan where no run has been told."""
    pools = isinstance(plan.layout, Pools)
    used, first = promised_of(request, pools=pools).law, promised_of(replace(request, calibrations=()), pools=pools).law
    kinds = (("ttft_p95_s", used.ttft, first.ttft), ("tpot_p95_s", used.tpot, first.tpot))
    return {name: first.median_s(used.simulated_s(said[name], 0.5)) for name, used, first in kinds if said.get(name)}


def _overhead_bytes(plan: Plan) -> float:
    """Bytes beside all tensors on the fullest device, which an allocator does not count."""
    fullest = max((stage.memory for stage in record_of(plan).stages), key=lambda memory: memory.total_bytes, default=None)
    return 0.0 if fullest is None else fullest.overhead_bytes


def _check_kind(run: MeasuredRun, kind: str) -> None:
    """Refuse figures that plans of this kind do not have."""
    allowed = FIGURES_OF[kind]
    for name in run.measured():
        if name not in allowed:
            raise _fault(name, f"a {kind} plan has no such figure", str(getattr(run, name)), ", ".join(allowed))


def _check_near(name: str, measured: float, predicted: float | None) -> None:
    """Refuse a figure that can't be of this plan."""
    if predicted is not None and not predicted / FARTHEST <= measured <= predicted * FARTHEST:
        allowed = f"{predicted / FARTHEST:.4g} to {predicted * FARTHEST:.4g}; predicted: {predicted:.4g}"
        raise _fault(name, "this is no figure of this plan", f"{measured:g}", allowed, "check the unit, and which plan ran")


def _fault(field: str, problem: str, given: str, allowed: object = None, remedy: str | None = None) -> DocumentError:
    fault = FieldError(field, problem, given, None if allowed is None else str(allowed), remedy)
    return DocumentError("this run can't be used", (fault,))


# From the stored runs of one hardware and framework to the calibration that is learned from them.

DECIMALS = 9
"""Of the factors and seconds that a calibration keeps: a microsecond would be 0.02% of a token's 4 ms."""

MOST_RUNS = 256
"""The latest runs that are learned from: software changes, and a cluster with it."""

Told = tuple[StoredRun, dict[str, Any], dict[str, Any]]
"""A run's row, what was measured, and what had been predicted."""


def learned_from(group: RunGroup, runs: Sequence[StoredRun]) -> Calibration | None:
    """Return the calibration of a group's runs; None where none says anything under this version of the cost model."""
    read = [(run, json.loads(run.run), json.loads(run.predicted)) for run in runs]
    told = [each for each in read if each[2]["cost_model_version"] == COST_MODEL_VERSION]
    # No framework of training has the name of a serving engine: runs of a group are of one kind.
    taught = _RUNS[told[0][0].kind].taught(group, told) if told else None
    if taught is None:
        return None
    digests = sorted(stored.digest for stored, _, _ in told)
    document = {
        "schema": RUN_CALIBRATION_SCHEMA,
        "key": group.key,
        "cluster": group.cluster,
        "profile": group.profile,
        "cost_model_version": COST_MODEL_VERSION,
        **taught,
        "provenance": {f"measured runs on {group.cluster} by {group.profile}": counted(len(told), "run")},
        "samples": {"digest": f"sha256:{hashlib.sha256(rfc8785.dumps(digests)).hexdigest()}", "rows": len(told)},
    }
    return read_calibration_document(document)


def _of_training(told: Sequence[Told]) -> dict[str, Any]:
    """The law of step times, and the evidence on memory."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for stored, run, predicted in told:
        if "step_time_s" in run:
            ratios[f"{stored.model} {predicted['step_time_s']:.9g}"].append(
                math.log(run["step_time_s"] / predicted["step_time_s"])
            )
    law = learned_time(UNMEASURED_TIME, ratios)
    return {
        "time": {
            "scale": round(law.scale, DECIMALS),
            "shared_sigma": round(law.shared_sigma, DECIMALS),
            "own_sigma": round(law.own_sigma, DECIMALS),
            "runs": law.runs,
        },
        "memory": [_memory_outcome(run, predicted) for _, run, predicted in told],
    }


def _of_serving(group: RunGroup, told: Sequence[Told]) -> dict[str, Any] | None:
    """The laws of both latencies of the engine; None where no run has one."""
    prior = latency_law(ServingEngine(group.profile), pools=False, devices=())
    kinds = ((prior.ttft, "ttft", OUTSIDE_SIGMA_S), (prior.tpot, "tpot", HOST_STEP_SIGMA_S))
    points = {name: _points(law, f"{name}_p95_s", told) for law, name, _ in kinds}
    if not any(points.values()):
        return None
    laws = {name: learned_latency(law, points[name], outside_sigma_s=sigma_s) for law, name, sigma_s in kinds}
    documents: dict[str, Any] = {
        name: {figure: round(value, DECIMALS) for figure, value in asdict(law).items()} for name, law in laws.items()
    }
    return {LATENCY: {**documents, "runs": max(map(len, points.values()))}}


def _points(prior: LatencyLaw, figure: str, told: Sequence[Told]) -> list[LatencyPoint]:
    """Measured times beside the simulated ones, which are predicted medians without what is outside of a simulation."""
    found = []
    for stored, run, predicted in told:
        simulated_s = predicted.get(figure, 0.0) / prior.scale - prior.outside_s
        if figure in run and simulated_s > 0.0:
            layout = f"{stored.model} {predicted['ttft_p95_s']:.9g} {predicted['tpot_p95_s']:.9g}"
            found.append(LatencyPoint(layout, simulated_s, run[figure]))
    return found


def _memory_outcome(run: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """A run's memory beside what the law said of it: its peak, or what it had."""
    device_bytes = float(predicted["device_memory_bytes"])
    outcome, told_bytes = "fitted", device_bytes
    if run["outcome"] == RunOutcome.OUT_OF_MEMORY:
        outcome = "ran-out"
    elif "peak_memory_bytes" in run:
        # Allocators do not count what a process takes beside its tensors.
        outcome, told_bytes = "peak", min(device_bytes, run["peak_memory_bytes"] + predicted["overhead_bytes"])
    return {"outcome": outcome, "median_bytes": float(predicted["peak_memory_bytes"]), "told_bytes": float(told_bytes)}


# What differs by the kind of workload that ran.


@dataclass(frozen=True, slots=True)
class KindRuns:
    """What runs of a kind of workload are compared with, and what they teach.

    at_own_load  the plan's figures at the load that was measured
    before_runs  those of its figures that runs have moved, as they were before any
    taught       what runs of a group teach; None where they teach nothing
    """

    at_own_load: Callable[[MeasuredRun, Plan, Any], Predicted]
    before_runs: Callable[[Any, Plan, Mapping[str, float]], dict[str, float]]
    taught: Callable[[RunGroup, Sequence[Told]], dict[str, Any] | None]


_RUNS: Mapping[str, KindRuns] = {
    "training": KindRuns(_of_a_step, _steps_before_runs, lambda group, told: _of_training(told)),
    "serving": KindRuns(_of_a_load, _before_runs, _of_serving),
}
"""Runs by the kind of workload."""
