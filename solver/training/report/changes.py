"""The changes of a training request that may help where it has no plan."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.memory_law import MAX_RISK
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.choice import TRAINING
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.suggestions import Change

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a part of the state that may lie on the host; the best is searched."""

OFFLOADS = (
    ("offload_optimizer",),
    ("offload_optimizer", "offload_gradients"),
    ("offload_optimizer", "offload_gradients", "offload_weights"),
    ("offload_optimizer", "offload_gradients", "offload_weights", "offload_activations"),
)
"""Parts that are moved, the cheapest first: optimizer states cross the link once a step, the others with every micro-batch."""

MORE_NODES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
"""Sizes of the first node group that are tried, over what it has, after one to three nodes more."""

SHORTER = (2, 4, 8)
SMALLER_OPTIMIZERS = (Optimizer.ADAMW_BF16, Optimizer.ADAMW_8BIT)
MOST_LIFTED = 4
"""Restrictions that are lifted in turn, at most."""

DIGITS = 4
"""Significant digits of a target that is suggested."""


def training_changes(request: TrainingRequest, reason: Reason) -> Iterator[Sequence[Change]]:
    """Yield ladders of changes, those that cost nothing first; memory that moves or shrinks helps where memory is short."""
    search = request.search
    is_target = reason.constraint.startswith("slo.")
    if is_target:
        yield (_reachable_target(request, reason),)
    for name in _restrictions(search)[:MOST_LIFTED]:
        yield (_searching(request, f"lift search.{name}", {name: _default(name)}),)
    if not is_target:
        yield from _less_memory(request)
    yield tuple(_with_nodes(request, nodes) for nodes in _sizes(request.cluster.groups[0].nodes))
    if not is_target:
        yield tuple(_shorter(request, by) for by in SHORTER if request.workload.seq_len % by == 0)


def _less_memory(request: TrainingRequest) -> Iterator[Sequence[Change]]:
    search = request.search
    yield tuple(
        _searching(request, f"let {_listed(names)} lie on the host", dict.fromkeys(names, SHARES))
        for names in OFFLOADS
        if not any(getattr(search, name) for name in names)
    )
    if not search.optimizers:
        own = request.workload.optimizer
        smaller = [optimizer for optimizer in SMALLER_OPTIMIZERS if optimizer is not own]
        yield tuple(_searching(request, f"optimizer {each.value}", {"optimizers": (each,)}) for each in smaller)
    if search.risk < MAX_RISK:
        yield (_searching(request, f"a risk of {MAX_RISK:g} instead of {search.risk:g}", {"risk": MAX_RISK}),)


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


def _searching(request: TrainingRequest, words: str, changes: dict[str, Any]) -> Change:
    values = {f"search.{name}": json.dumps(value) for name, value in changes.items()}
    return Change(words, values, replace(request, search=replace(request.search, **changes)))


def _with_nodes(request: TrainingRequest, nodes: int) -> Change:
    first, *others = request.cluster.groups
    cluster = replace(request.cluster, groups=(replace(first, nodes=nodes), *others))
    words = f"{nodes} nodes of {first.node.name} instead of {first.nodes}"
    return Change(words, {"cluster.groups.0.nodes": json.dumps(nodes)}, replace(request, cluster=cluster))


def _sizes(nodes: int) -> list[int]:
    return sorted({nodes + 1, nodes + 2, nodes + 3, *(math.ceil(factor * nodes) for factor in MORE_NODES)} - {nodes})


def _shorter(request: TrainingRequest, by: int) -> Change:
    seq_len = request.workload.seq_len // by
    words = f"sequences of {seq_len:,} tokens instead of {request.workload.seq_len:,}"
    workload = replace(request.workload, seq_len=seq_len)
    return Change(words, {"workload.seq_len": json.dumps(seq_len)}, replace(request, workload=workload))


def _reachable_target(request: TrainingRequest, reason: Reason) -> Change:
    """The targets moved to what the fastest plan that fits is promised to take."""
    slo, tokens = request.slo, request.workload.global_batch * request.workload.seq_len
    changed: dict[str, float] = {}
    if slo.max_step_time_s is not None and slo.max_step_time_s < reason.need:
        changed["max_step_time_s"] = _rounded(reason.need, up=True)
    if slo.min_tokens_per_s is not None and slo.min_tokens_per_s > tokens / reason.need:
        changed["min_tokens_per_s"] = _rounded(tokens / reason.need, up=False)
    words = " and ".join(f"slo.{name}: {value:g}" for name, value in changed.items())
    values = {f"slo.{name}": json.dumps(value) for name, value in changed.items()}
    return Change(words, values, replace(request, slo=replace(slo, **changed)))


def _rounded(value: float, *, up: bool) -> float:
    """The value with `DIGITS` significant digits, never better than it is."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return float(f"{(math.ceil(value / unit) if up else math.floor(value / unit)) * unit:.{DIGITS}g}")


def _restrictions(search: Search) -> list[str]:
    """Choices of training plans that a request restricts to some of their values, where naming none allows all."""
    return [
        name
        for name, entry in LEDGER.items()
        if entry.choice.forms & TRAINING and isinstance(getattr(search, name), tuple) and getattr(search, name) != entry.default
    ]


def _default(name: str) -> Any:
    return next(each.default for each in fields(Search) if each.name == name)


def _listed(names: Sequence[str]) -> str:
    parts = [name.removeprefix("offload_") for name in names]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
