"""Times of the cost model and times of a cluster: a plan's figures with all times longer by one factor that runs have told.

Every time of a step grows alike, so no plan passes another and a certificate keeps its gap. The search works in the cost
model's time, with targets brought into it; the plan that it finds is handed out in the cluster's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from meshwright.costmodels.calibration.from_runs import LATENCY, UNMEASURED_TIME, TimeLaw, run_calibration, time_law
from meshwright.costmodels.calibration.networks import NetworkCalibration, network_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.units import OverTime
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Band, CalibrationUse, Certificate, Predicted
from meshwright.solver.answer.timed_words import TimedWords
from meshwright.solver.problem.request import Asked, PlanRequest, TrainingRequest

DEVICES = "devices"
"""The unit of an objective that is no time; those in seconds, USD and joules of a step grow."""

LOW, HIGH = 0.05, 0.95
"""The quantiles of the bands: nine of ten runs fall between them."""


def law_of(request: PlanRequest) -> TimeLaw | None:
    """Return what runs told of the times of steps; None where nothing was learned."""
    learned = run_calibration(request.calibrations)
    return None if learned is None or LATENCY in learned.document else time_law(learned)


def confident_factor(request: PlanRequest) -> float:
    """Return how many times the cost model's step time a measured one takes at most, with the confidence of the SLO: by the law
    of runs on this hardware, or by that of all frameworks and clusters where none was reported."""
    return (law_of(request) or UNMEASURED_TIME).factor(request.slo.confidence)


def in_model_time(request: Asked) -> Asked:
    """Return the request with its targets of a step in the cost model's time, such that they hold with the SLO's confidence: to
    the search a shorter step. Those of serving are brought into simulated time where they are judged."""
    slo = request.slo
    longest_s, least, most = slo.max_step_time_s, slo.min_tokens_per_s, slo.max_cost_per_million_tokens
    if not request.longest_steps_s:
        return request
    factor = confident_factor(request)
    in_time = replace(
        slo,
        max_step_time_s=None if longest_s is None else longest_s / factor,
        min_tokens_per_s=None if least is None else least * factor,
        max_cost_per_million_tokens=None if most is None else most / factor,
    )
    return replace(request, slo=in_time)


def in_cluster_time(plan: Plan, request: TrainingRequest) -> Plan:
    """Return the plan with its figures and sentences in the cluster's time, with the bands that runs tell and a note that says
    so."""
    law = law_of(request)
    if law is None:
        return cast(Plan, _told(plan, 1.0, confident_factor(request)))
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
    scaled: Plan = _told(plan, law.scale, confident_factor(request))
    if scaled.predicted is not None and plan.predicted is not None:
        scaled = replace(scaled, predicted=_with_bands(scaled.predicted, law, basis))
    return replace(
        scaled,
        certificate=_certificate(plan.certificate, law.scale),
        runners_up=tuple(
            replace(each, objective=_objective(each.objective, plan.certificate.unit, law.scale)) for each in scaled.runners_up
        ),
        calibration=(*scaled.calibration, use),
        notes=(*scaled.notes, f"times are {law.scale:.3f} times the cost model's, learned from {basis}"),
    )


def _with_bands(predicted: Predicted, law: TimeLaw, basis: str) -> Predicted:
    """Return the figures with bands in which nine of ten runs fall."""
    factors = law.factor(LOW) / law.scale, law.factor(HIGH) / law.scale
    bands, units = dict(predicted.bands), _units_of(Predicted)
    for name in ("step_time_s", "tokens_per_s", "mfu"):
        value, over = getattr(predicted, name), units[name]
        if value is not None and over is not None:
            low, high = sorted(over.scaled(value, factor) for factor in factors)
            bands[name] = Band(low, high, f"nine of ten runs, by {basis}")
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


def _told(value: Any, scale: float, promised: float, over: OverTime | None = None) -> Any:
    """Return the value with every figure and sentence in it in another time, by the units that fields declare; all else stays.

    scale, promised   how many times the cost model's time is expected, and promised with the SLO's confidence
    over              of the field that holds the value
    """
    if isinstance(value, TimedWords):
        return value.told(scale, promised)
    if is_dataclass(value) and not isinstance(value, type):
        units = _units_of(type(value))
        changed = {
            each.name: _told(getattr(value, each.name), scale, promised, units[each.name] or over) for each in fields(value)
        }
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(_told(each, scale, promised, over) for each in value)
    if isinstance(value, Mapping):
        return {key: _told(each, scale, promised) for key, each in value.items()}
    return value if over is None or not isinstance(value, float) else over.scaled(value, scale)


@cache
def _units_of(record: type) -> Mapping[str, OverTime | None]:
    """What each field of a record says of its unit, None of one that stays."""
    hints = get_type_hints(record, include_extras=True)
    return {each.name: _unit_in(hints[each.name]) for each in fields(record)}


def _unit_in(hint: object) -> OverTime | None:
    """The unit in a type, or in one of its options."""
    options = get_args(hint)
    if get_origin(hint) is Annotated:
        return next((said for said in options if isinstance(said, OverTime)), None)
    return next(filter(None, map(_unit_in, options)), None) if get_origin(hint) in (Union, UnionType) else None


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
