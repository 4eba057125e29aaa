"""No figure that a plan predicts keeps it from being exported; what it runs, and whether that fits, does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.requests.examples import SERVING_REQUEST, TRAINING_REQUEST
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify import Rule, Subject
from meshwright.solver.verify.check import check
from tests.support.requests_given import resolved
from tests.unit.app.exporters.plans import serving, training
from tests.unit.solver.verify.changes import at, changed

REQUESTS: dict[str, dict[str, Any]] = {
    "training": TRAINING_REQUEST,
    "energy": TRAINING_REQUEST | {"objective": "energy"},
    "serving": SERVING_REQUEST,
}
LAUNCHERS = {"training": "megatron-lm", "energy": "megatron-lm", "serving": "vllm"}


@functools.cache
def answered(name: str) -> tuple[Plan, PlanRequest]:
    request = resolved(REQUESTS[name])
    return solve(request, stop=never_stop, progress=ignore_progress), request


def figures(part: object, path: str = "") -> Iterator[str]:
    """Paths of every float of a plan's record but zeros: all of them are predicted."""
    if isinstance(part, float) and part > 0:
        yield path
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from figures(item, f"{path}.{index}")
    elif is_dataclass(part):
        for field in fields(part):
            yield from figures(getattr(part, field.name), f"{path}.{field.name}" if path else field.name)


@pytest.mark.parametrize("rule", list(Rule))
def test_every_rule_says_what_it_judges(rule: Rule) -> None:
    assert isinstance(rule.subject, Subject)
    assert Rule(rule.value) is rule


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REQUESTS))
def test_a_plan_with_a_changed_figure_is_broken_and_exports(name: str) -> None:
    plan, request = answered(name)
    broken: set[Rule] = set()
    walked = list(figures(record_of(plan)))
    assert len(walked) > 10
    for path in walked:
        for factor in (0.8, 1.2):
            wrong = changed(plan, path, at(plan, path) * factor)  # type: ignore[operator]
            found = {violation.rule for violation in check(wrong, request)}
            broken |= found
            if Rule.CAPACITY not in found:
                assert {rule.subject for rule in found} <= {Subject.FIGURE}, path
                export(wrong, request, LAUNCHERS[name])
    assert broken >= EXPECTED[name]


EXPECTED = {
    "training": {
        Rule.CERTIFICATE, Rule.WEIGHTS, Rule.GRADIENTS, Rule.OPTIMIZER, Rule.ACTIVATIONS, Rule.USABLE,
        Rule.PEAK_MEMORY, Rule.STEP_TIME, Rule.BREAKDOWN, Rule.TOKENS, Rule.MFU, Rule.COST, Rule.FRONTIER,
    },
    "energy": {Rule.CERTIFICATE, Rule.ENERGY},
    "serving": {Rule.WEIGHTS, Rule.COST, Rule.USABLE, Rule.PEAK_MEMORY},
}  # fmt: skip
"""Rules of figures that changes of a fifth break."""


@pytest.mark.parametrize("made", [training(dp=4, tp=2, sequence_parallel=True), serving()], ids=["training", "serving"])
def test_a_plan_that_does_not_fit_is_refused(made: tuple[Plan, PlanRequest]) -> None:
    plan, request = made
    launcher = "megatron-lm" if plan.kind == "training" else "vllm"
    export(plan, request, launcher)
    (group,) = request.cluster.groups
    device = replace(group.node.device, memory_bytes=40 * 10**9)
    smaller = Cluster((replace(group, node=replace(group.node, device=device)),))
    with pytest.raises(ExportError, match=r"capacity at .* 40000000000"):
        export(plan, replace(request, cluster=smaller), launcher)


def test_a_wrong_figure_hides_no_rule_of_the_launcher() -> None:
    """Certificates are judged before degrees: a wrong one must not keep these from being looked at."""
    plan, request = training(dp=2, pp=2, zero_stage=2)
    with pytest.raises(ExportError, match="ZeRO 2 beside pp 2"):
        export(changed(plan, "certificate.objective", 7.0), request, "megatron-lm")
