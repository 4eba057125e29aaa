"""Times of the cost model and times of a cluster: a plan's figures with all times longer by one factor that runs have told.

Every time of a step grows alike, so no plan passes another and a certificate keeps its gap. The search works in the cost
model's time, with targets brought into it; the plan that it finds is handed out in the cluster's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from meshwright.costmodels.calibration.from_runs import LATENCY, UNMEASURED_TIME, TimeLaw, run_calibration, time_law
from meshwright.costmodels.calibration.networks import NetworkCalibration, network_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Band, CalibrationUse, Certificate, Predicted
from meshwright.solver.problem.request import PlanRequest, TrainingRequest

Record = TypeVar("Record")

GROWS = ("_s", "_j", "cost_per_million_tokens")
"""Ends of the names of figures that grow with all times: seconds, joules of a step, prices."""

SHRINKS = ("_per_s", "mfu", "_w")
"""Ends of the names of figures that shrink with them: rates, shares of peak, watts. Looked at before the others."""

DEVICES = "devices"
"""The unit of an objective that is no time; those in seconds, USD and joules of a step grow."""

LOW, HIGH = 0.05, 0.95
"""The quantiles of the bands: nine of ten runs fall between them."""


def law_of(request: PlanRequest) -> TimeLaw | None:
    """Return what runs told of the times of a training request; None where nothing was learned."""
    learned = run_calibration(request.calibrations) if isinstance(request, TrainingRequest) else None
    return None if learned is None or LATENCY in learned.document else time_law(learned)


def confident_factor(request: TrainingRequest) -> float:
    """Return how many times the cost model's step time a measured one takes at most, with the confidence of the SLO: by the law
    of runs on this hardware, or by that of all frameworks and clusters where none was reported."""
    return (law_of(request) or UNMEASURED_TIME).factor(request.slo.confidence)


def in_model_time(request: PlanRequest) -> PlanRequest:
    """Return a training request with its targets in the cost model's time, such that they hold with the SLO's confidence: to
    the search a shorter step. Those of serving are brought into simulated time where they are judged."""
    slo = request.slo
    longest_s, least, most = slo.max_step_time_s, slo.min_tokens_per_s, slo.max_cost_per_million_tokens
    if not isinstance(request, TrainingRequest) or not request.longest_steps_s:
        return request
    factor = confident_factor(request)
    in_time = replace(
        slo,
        max_step_time_s=None if longest_s is None else longest_s / factor,
        min_tokens_per_s=None if least is None else least * factor,
        max_cost_per_million_tokens=None if most is None else most / factor,
    )
    return replace(request, slo=in_time)


def in_cluster_time(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan with its figures in the cluster's time, with the bands that runs tell and a note that says so."""
    law = law_of(request)
    if law is None:
        return plan
    learned = run_calibration(request.calibrations)
    assert learned is not None, "the law came from it"
    basis = f"{law.runs} measured run{'' if law.runs == 1 else 's'} of this framework on this hardware"
    use = CalibrationUse(
        id=learned.name,
        device=str(learned.document["cluster"]),
        median_error=law.factor(0.75) / law.scale - 1.0,
        p95_error=law.factor(HIGH) / law.scale - 1.0,
        basis=f"times x {law.scale:.3f} by {basis}",
    )
    scaled: Plan = _scaled(plan, law.scale)
    if scaled.predicted is not None and plan.predicted is not None:
        scaled = replace(scaled, predicted=_with_bands(scaled.predicted, law, basis))
    return replace(
        scaled,
        certificate=_certificate(plan.certificate, law.scale),
        runners_up=tuple(
            replace(each, objective=_objective(each.objective, plan.certificate.unit, law.scale)) for each in plan.runners_up
        ),
        calibration=(*plan.calibration, use),
        notes=(*plan.notes, f"times are {law.scale:.3f} times the cost model's, learned from {basis}"),
    )


def _with_bands(predicted: Predicted, law: TimeLaw, basis: str) -> Predicted:
    """Return the figures with bands in which nine of ten runs fall."""
    low, high = law.factor(LOW) / law.scale, law.factor(HIGH) / law.scale
    bands = {name: band for name, band in predicted.bands.items() if name not in ("step_time_s", "tokens_per_s", "mfu")}
    for name in ("step_time_s", "tokens_per_s", "mfu"):
        value = getattr(predicted, name)
        if value is not None:
            bands[name] = Band(value * low, value * high, f"nine of ten runs, by {basis}")
    return replace(predicted, bands=bands)


def _certificate(certificate: Certificate, scale: float) -> Certificate:
    unit = certificate.unit
    return replace(
        certificate,
        objective=_objective(certificate.objective, unit, scale),
        bound=_objective(certificate.bound, unit, scale),
    )


def _objective(value: float | None, unit: str, scale: float) -> float | None:
    return value if value is None or unit == DEVICES else value * scale


def _scaled(value: Any, scale: float, name: str = "") -> Any:
    """Return the value with every time in it longer, told by the ends of names; texts and counts stay."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {each.name: _scaled(getattr(value, each.name), scale, each.name) for each in fields(value)}
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(_scaled(each, scale, name) for each in value)
    if isinstance(value, Mapping):
        return {key: _scaled(each, scale, str(key)) for key, each in value.items()}
    if not isinstance(value, float):
        return value
    if name.endswith(SHRINKS):
        return value / scale
    return value * scale if name.endswith(GROWS) else value


# The networks between nodes that a prediction rests on: measured fabrics, and priors of their kinds.


def networks_between(cluster: Cluster) -> dict[str, NetworkCalibration]:
    """The calibration of each network that joins the nodes, by its name; none of a single node."""
    if sum(group.nodes for group in cluster.groups) == 1:
        return {}
    return {name: network_calibration(name) for name in sorted({group.node.network for group in cluster.groups})}


def networks_used(cluster: Cluster) -> tuple[CalibrationUse, ...]:
    """The networks of a cluster as calibrations that a plan rests on, each with its error, and whether it was measured."""
    return tuple(
        CalibrationUse(
            id=f"{name}/network",
            device=", ".join(sorted({group.node.name for group in cluster.groups if group.node.network == name})),
            median_error=network.error.median,
            p95_error=network.error.p95,
            basis=_in_words(network),
        )
        for name, network in networks_between(cluster).items()
    )


def _in_words(network: NetworkCalibration) -> str:
    if network.is_measured:
        return f"network between nodes: measured, {network.basis}"
    fastest, slowest = network.factors
    ends = f"{fastest - 1.0:+.0%} to {slowest - 1.0:+.0%} of its time"
    return (
        f"network between nodes: not measured, prior of {network.name}, {ends}; "
        f"{network.basis}; 'meshwright calibrate fabric' measures it"
    )
