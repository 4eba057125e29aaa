"""The changes of a training request that may help where it has no plan, or make its plan better."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, Optimizer, state_bytes_per_parameter
from meshwright.costmodels.model.adapter import WEIGHT_BYTES
from meshwright.costmodels.model.implementation import TrainedWeights
from meshwright.costmodels.model.memory_law import MAX_RISK
from meshwright.solver.answer.cluster_time import in_model_time
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.choice import TRAINING
from meshwright.solver.problem.choices import Objective, Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.suggestions import (
    RequestChange,
    beside,
    more_devices,
    restrictions_lifted,
    rounded,
    searching,
    with_targets,
)
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.report.plan_report import promised_step_s
from meshwright.solver.training.space.implementation import implementation_of

Change = RequestChange[TrainingRequest]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a part of the state that may lie on the host; the best is searched."""

WHOLLY = (1.0,)
"""All of a part on the host: a far smaller space, which is searched first."""

OFFLOADS = (
    ("offload_optimizer",),
    ("offload_optimizer", "offload_gradients"),
    ("offload_optimizer", "offload_gradients", "offload_weights"),
    ("offload_optimizer", "offload_gradients", "offload_weights", "offload_activations"),
)
"""Parts that are moved, the cheapest first: optimizer states cross the link once a step, the others with every micro-batch."""

FEWEST_NODES = 0.85
"""Nodes that are tried first, over those on which devices would lack nothing if each held an equal part of what is short."""

SHORTER = (2, 4, 8)
LESS_SURE = (0.1, 0.2, MAX_RISK)
SAFE = 0.01
"""The chance to run out of memory above which a plan counts as tight. Of measured groups no first pick crashes at this risk
(docs/decisions-accuracy.md)."""

LOOSER = (1.1, 1.25, 1.5, 2.0)
"""Risks, and targets over those of the request, that are tried in turn for a better plan."""

TAKING_ALL = (Objective.THROUGHPUT, Objective.STEP_TIME)
"""Objectives for which a plan takes all devices: more of them make its step shorter."""

SMALLER_OPTIMIZERS = (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT)


def training_changes(request: TrainingRequest, reason: Reason) -> Iterator[Sequence[Change]]:
    """Yield ladders of changes, those that cost nothing first; memory that moves or shrinks helps where memory is short.

    Left out are changes under which all devices together can't hold the state of training, or take too long at their peak.
    """
    for ladder in _changes(request, reason):
        yield tuple(
            replace(each, part=_of_least_memory(each.request))
            for each in ladder
            if _may_hold_state(each.request) and _may_be_in_time(each.request)
        )


def _of_least_memory(request: TrainingRequest) -> TrainingRequest | None:
    """The part of the space whose activations take least: layers recomputed whole, sequences one by one; None where the request
    names other values."""
    search = request.search
    least = replace(search, microbatch=(1,), recompute=(Recompute.FULL,))
    is_part = 1 in (search.microbatch or (1,)) and Recompute.FULL in (search.recompute or (Recompute.FULL,))
    return replace(request, search=least) if is_part and search.system is None else None


def _may_hold_state(request: TrainingRequest) -> bool:
    """Return False if weights and optimizer states, of every parameter once, exceed the memory of all devices.

    No plan holds less of what is not on the host, however it is sharded. Gradients may be released: they are not counted.
    """
    workload, search = request.workload, request.search
    optimizers = search.optimizers or (workload.optimizer,)
    whole = [
        state_bytes_per_parameter(
            precision=workload.precision,
            gradient_dtype=workload.gradient_dtype,
            optimizer=optimizer,
            zero_stage=MAX_ZERO_STAGE,
            shards=1,
        )
        for optimizer in optimizers
    ]
    weights = (1.0 - max(search.offload_weights, default=0.0)) * whole[0].weights
    states = (1.0 - max(search.offload_optimizer, default=0.0)) * min(each.optimizer for each in whole)
    if implementation_of(workload, search).trained is not TrainedWeights.ALL:
        states = 0.0
    if workload.adapter is not None:
        weights = min(weights, WEIGHT_BYTES.get(workload.adapter.base_format, weights))
    held = sum(group.nodes * group.node.devices_per_node * group.node.device.memory_bytes for group in request.cluster.groups)
    return request.model.parameters() * (weights + states) <= held


def _may_be_in_time(request: TrainingRequest) -> bool:
    """Return False if the products of a step exceed what all devices compute at their peak in the time that targets allow."""
    asked = in_model_time(request)
    with calibrations_in_force(request.calibrations):
        return compute_bound_s(asked) <= asked.longest_step_s


def _changes(request: TrainingRequest, reason: Reason) -> Iterator[Sequence[Change]]:
    is_target = reason.constraint.startswith("slo.")
    if is_target:
        yield (_reachable_target(request, reason),)
    yield from restrictions_lifted(request, TRAINING)
    if not is_target:
        yield _offloads(request)
    yield more_devices(request, at_least=0.0 if is_target else FEWEST_NODES * reason.need / max(reason.have, 1.0))
    if not is_target:
        yield from _less_memory(request)
        yield tuple(_shorter(request, by) for by in SHORTER if request.workload.seq_len % by == 0)


def training_improvements(request: TrainingRequest) -> Iterator[Sequence[Change]]:
    """Yield ladders of changes that may make a plan better: choices that are not searched unless a request names them, what
    memory it may take, targets that decide how much of the cluster it takes, more nodes for a faster step."""
    yield from restrictions_lifted(request, TRAINING)
    yield from _less_memory(request, risks=LESS_SURE)
    yield _offloads(request)
    if request.objective in TAKING_ALL:
        yield more_devices(request)
    else:
        yield tuple(_looser_targets(request))


def is_tight(plan: Plan) -> bool:
    """Return True if a plan runs out of memory with more than the chance that counts as safe."""
    return plan.predicted is not None and (plan.predicted.chance_out_of_memory or 0.0) > SAFE


def safer_risk(request: TrainingRequest) -> tuple[Change, ...]:
    """The ladder of the request with a tight plan whose plan is safe."""
    return (searching(request, f"a risk of {SAFE:g} instead of {request.search.risk:g}", {"risk": SAFE}),)


def safer_beside(surer: Change) -> Iterator[Sequence[Change]]:
    """Yield ladders of what may make a safe plan better: restrictions lifted, a smaller optimizer, state on the host."""
    request = surer.request
    for ladder in (*restrictions_lifted(request, TRAINING), *_less_memory(request, risks=()), _offloads(request)):
        yield tuple(beside(surer, each) for each in ladder)


def _looser_targets(request: TrainingRequest) -> Iterator[Change]:
    slo = request.slo
    for factor in LOOSER:
        targets: dict[str, float] = {}
        if slo.max_step_time_s is not None:
            targets["max_step_time_s"] = rounded(slo.max_step_time_s * factor, up=True)
        if slo.min_tokens_per_s is not None:
            targets["min_tokens_per_s"] = rounded(slo.min_tokens_per_s / factor, up=False)
        if slo.max_cost_per_million_tokens is not None:
            targets["max_cost_per_million_tokens"] = rounded(slo.max_cost_per_million_tokens * factor, up=True)
        if targets:
            yield with_targets(request, targets)


def _offloads(request: TrainingRequest) -> tuple[Change, ...]:
    """The parts of the state that may move to the host, wholly or in part; those that the request names stay as they are."""
    free: list[Sequence[str]] = [names for names in OFFLOADS if not any(getattr(request.search, name) for name in names)]
    parts: list[tuple[Sequence[str], Sequence[float], str]] = [(names, SHARES, "") for names in free]
    if free and free[0] == OFFLOADS[0]:
        parts.insert(0, (free[0], WHOLLY, " wholly"))
    return tuple(
        searching(request, f"let {_listed(names)} lie{how} on the host", dict.fromkeys(names, shares))
        for names, shares, how in parts
    )


def _less_memory(request: TrainingRequest, *, risks: Sequence[float] = (MAX_RISK,)) -> Iterator[Sequence[Change]]:
    search = request.search
    if not search.optimizers:
        own = request.workload.optimizer
        smaller = [optimizer for optimizer in SMALLER_OPTIMIZERS if optimizer is not own]
        yield tuple(searching(request, f"optimizer {each.value}", {"optimizers": (each,)}) for each in smaller)
    more = [risk for risk in risks if risk > search.risk]
    if more:
        yield tuple(searching(request, f"a risk of {risk:g} instead of {search.risk:g}", {"risk": risk}) for risk in more)


def reached_by(plan: Plan) -> str:
    """Return the figures of a plan that a change has, in words."""
    predicted = plan.predicted
    assert predicted is not None and predicted.step_time_s is not None, "a feasible training plan"
    parts = [f"{predicted.step_time_s:.4g} s a step", f"{predicted.tokens_per_s:,.0f} tokens/s on {plan.devices:,} devices"]
    breakdown = placement_of(plan).breakdown
    if breakdown is not None and breakdown.offload_s:
        parts.append(f"{breakdown.offload_s:.3g} s of it exposed moves to the host")
    if predicted.chance_out_of_memory is not None:
        parts.append(f"{predicted.chance_out_of_memory:.1%} chance to run out of memory")
    return ", ".join(parts)


def _shorter(request: TrainingRequest, by: int) -> Change:
    seq_len = request.workload.seq_len // by
    words = f"sequences of {seq_len:,} tokens instead of {request.workload.seq_len:,}"
    workload = replace(request.workload, seq_len=seq_len)
    return RequestChange(words, {"workload.seq_len": json.dumps(seq_len)}, replace(request, workload=workload))


def _reachable_target(request: TrainingRequest, reason: Reason) -> Change:
    """The targets moved to what the fastest plan that fits is promised to take."""
    slo, tokens = request.slo, request.workload.global_batch * request.workload.seq_len
    changed: dict[str, float] = {}
    step_s = promised_step_s(reason, request) or reason.need
    if slo.max_step_time_s is not None and slo.max_step_time_s < step_s:
        changed["max_step_time_s"] = rounded(step_s, up=True)
    if slo.min_tokens_per_s is not None and slo.min_tokens_per_s > tokens / step_s:
        changed["min_tokens_per_s"] = rounded(tokens / step_s, up=False)
    costly_s = request.longest_steps_s.get("max_cost_per_million_tokens", step_s)
    if slo.max_cost_per_million_tokens is not None and costly_s < step_s:
        most = slo.max_cost_per_million_tokens * step_s / costly_s
        changed["max_cost_per_million_tokens"] = rounded(most, up=True)
    return with_targets(request, changed)


def _listed(names: Sequence[str]) -> str:
    parts = [name.removeprefix("offload_") for name in names]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
