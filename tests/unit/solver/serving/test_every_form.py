"""Every form of a serving plan: it is planned, checked, predicted, simulated, written, locked, shown and exported or
refused, without anything but its own folder and its types naming it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import get_args

import pytest
from rich.console import Console

from meshwright.app.cli.pages.plan_page import serving_parts
from meshwright.app.launching.exporters import LAUNCHERS, export
from meshwright.app.regression.locked_plan import structure_of
from meshwright.app.requests.plan_documents import plan_document, read_plan
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.queueing.router import Router
from meshwright.solver.answer.layouts import OfWorkers, Replicas, ServingLayout
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.serving import predict_serving, simulate_serving
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.layout_of import planned, request_of

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")
EVERY = pytest.mark.parametrize("form", get_args(ServingLayout))


@pytest.mark.slow_beyond(1)
@EVERY
def test_the_checker_has_rules_for_every_form(form: type[OfWorkers]) -> None:
    plan, request = planned(form), request_of(form)
    assert check(plan, request) == ()
    more = replace(plan, devices=plan.devices + 1, certificate=replace(plan.certificate, unit="other"))
    assert Rule.DEVICES in {violation.rule for violation in check(more, request)}


@EVERY
def test_the_certificate_of_every_form_says_its_restrictions(form: type[OfWorkers]) -> None:
    assert planned(form).certificate.space.endswith("; restricted to tp 1 or 2, pp 1 or 2")


@EVERY
def test_every_form_is_predicted_and_simulated_as_it_was_planned(form: type[OfWorkers]) -> None:
    plan, request = planned(form), request_of(form)
    predicted = predict_serving(request, plan)
    assert isinstance(predicted.layout, form)
    assert predicted.layout.all_workers == plan.layout.all_workers  # type: ignore[union-attr]
    assert simulate_serving(request, plan).missed == ()


@EVERY
def test_requests_are_dealt_in_turn_to_equal_replicas_alone(form: type[OfWorkers]) -> None:
    plan, request = planned(form), request_of(form)
    turns = replace(request, workload=replace(request.workload, router=Router.ROUND_ROBIN))
    if form is Replicas:
        assert predict_serving(turns, plan).feasible
        return
    for ask in (predict_serving, simulate_serving):
        with pytest.raises(WorkloadError, match="no other form"):
            ask(turns, plan)


@EVERY
def test_every_form_is_written_locked_and_shown_with_all_its_workers(form: type[OfWorkers]) -> None:
    plan = planned(form)
    assert isinstance(plan.layout, form)
    assert read_plan(plan_document(plan)) == plan
    console = Console(file=StringIO(), width=200)
    for part in serving_parts(plan.layout):
        console.print(part)
    shown, locked = console.file.getvalue(), str(structure_of(plan))  # type: ignore[attr-defined]
    assert all(f"{workers.max_num_batched_tokens:,}" in text for workers in plan.layout.all_workers for text in (shown, locked))


@EVERY
def test_a_launcher_starts_a_form_that_it_names_and_refuses_every_other(form: type[OfWorkers]) -> None:
    plan, request = planned(form), request_of(form)
    for launcher in (Launcher(name) for name in LAUNCHERS if Launcher(name) in SERVERS):
        if form.__name__.lower() in {each.value for each in SERVERS[launcher].forms}:
            continue
        with pytest.raises(ExportError):
            export(plan, request, launcher.value)
