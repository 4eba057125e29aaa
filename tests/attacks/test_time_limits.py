"""Solves that overstay, hoard or die: the answer is the best plan so far or that the question is open, never a 5xx.

The service, its worker's child process, the search and the checker are the real ones.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.app.base.errors import EXIT_NO
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import SolveFunction, solve_here
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.service.sandbox import ChildSolver, Limits
from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.solver import api
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Progress, Stop, ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.check import check
from tests.support.command_line import Cli
from tests.support.requests_given import resolved, training
from tests.support.service import running_service

MEMORY_BYTES = 2 * 2**30
WIDE = training(
    model={"catalog": "deepseek-v3"},
    cluster={"catalog": "dgx-h100", "nodes": 256},
    workload={"kind": "training", "global_batch": 8192, "seq_len": 4096},
    search={"space": "free", "time_limit_s": 1},
)
"""One frontier of a block of this takes longer than a minute, and its launchable space seconds."""
AT_ONCE = WIDE | {"search": {"space": "free", "time_limit_s": 0.01}}
"""The same with a limit that no machine finds a plan in."""


def with_a_plan(then: Callable[[], None], request: PlanRequest, on_progress: OnProgress) -> Plan:
    """The real search, until it has told of a plan; then something happens to it."""

    def tell(progress: Progress) -> None:
        on_progress(progress)
        if progress.incumbent is not None:
            then()

    return api.solve(request, stop=never_stop, progress=tell)


def sleep_on() -> None:
    while True:
        time.sleep(1)


def hoard() -> None:
    held = [bytearray(MEMORY_BYTES // 4) for _ in range(8)]
    raise AssertionError(f"{len(held)} could be held")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def overstays(request: PlanRequest, on_progress: OnProgress) -> Plan:
    return with_a_plan(sleep_on, request, on_progress)


def hoards(request: PlanRequest, on_progress: OnProgress) -> Plan:
    return with_a_plan(hoard, request, on_progress)


def is_killed(request: PlanRequest, on_progress: OnProgress) -> Plan:
    return with_a_plan(be_killed, request, on_progress)


def overstays_without(request: PlanRequest, on_progress: OnProgress) -> Plan:
    sleep_on()
    raise AssertionError


def hoards_without(request: PlanRequest, on_progress: OnProgress) -> Plan:
    hoard()
    raise AssertionError


def is_killed_without(request: PlanRequest, on_progress: OnProgress) -> Plan:
    be_killed()
    raise AssertionError


LIMITS = Limits(grace_s=1.0, memory_bytes=MEMORY_BYTES)
LONGER_S = (4, 16, 45)
"""Time limits to try in turn, within what a client waits: a busy machine takes long for its first plan."""


@pytest.mark.slow
@pytest.mark.parametrize("solve", [overstays, hoards, is_killed], ids=lambda solve: solve.__name__)
def test_a_solve_that_is_ended_answers_with_its_best_plan(settings: Settings, solve: SolveFunction) -> None:
    with running_service(settings, ChildSolver(solve, LIMITS)) as client:
        for limit_s in LONGER_S:
            document = training(search={"time_limit_s": limit_s})
            answer = client.post("/v1/plans", json=document)
            if answer.status_code == 201:
                break
            # The limit came before the first plan, or the solver was still being loaded.
            assert answer.status_code in (200, 202), answer.text
            if answer.status_code == 200:
                assert_undecided(answer.json())
    assert answer.status_code == 201, answer.text
    answered = read_plan_document(answer.json())
    plan, certificate = answered.plan, answered.plan.certificate
    assert plan.feasible and certificate.status is Status.FEASIBLE
    assert certificate.gap is not None and certificate.bound is not None
    assert "the best plan so far: the solve" in plan.notes[-1]
    request = resolved(document)
    with calibrations_in_force(request.calibrations):
        assert not check(plan, request)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("solve", [overstays_without, hoards_without, is_killed_without], ids=lambda solve: solve.__name__)
def test_a_solve_that_is_ended_without_a_plan_is_undecided(settings: Settings, solve: SolveFunction) -> None:
    document = training(search={"time_limit_s": 1})
    with running_service(settings, ChildSolver(solve, Limits(grace_s=0.5, memory_bytes=MEMORY_BYTES))) as client:
        answer = client.post("/v1/plans", json=document)
        assert client.get("/v1/plans").json()["plans"] == []
    assert answer.status_code == 200, answer.text
    assert_undecided(answer.json())


def assert_undecided(plan: dict[str, Any]) -> None:
    assert plan["feasible"] is False
    assert plan["certificate"]["status"] == "undecided"
    assert plan["reason"]["constraint"] == "search"
    assert plan["reason"]["message"].startswith("undecided: the limit was reached")
    assert plan["reason"]["remedies"]
    answer = {name: part for name, part in plan.items() if name != "request"}
    assert "infeasible" not in json.dumps(answer)


def test_a_search_looks_at_its_limit_within_a_block() -> None:
    """Assert that a search returns that used to run for minutes; the return itself is the test."""
    request = resolved(WIDE)
    plan = solve_here(request, ignore_progress)
    assert plan.certificate.status in (Status.FEASIBLE, Status.UNDECIDED)
    with calibrations_in_force(request.calibrations):
        assert not check(plan, request)


def test_the_service_answers_a_search_that_finds_nothing(settings: Settings) -> None:
    with running_service(settings, ChildSolver()) as client:
        answer = client.post("/v1/plans", json=AT_ONCE)
    assert answer.status_code == 200, answer.text
    assert_undecided(answer.json())


def test_the_command_line_says_undecided(cli: Cli) -> None:
    request = cli.write("request.json", AT_ONCE)
    assert cli("plan", request, "--no-store") == EXIT_NO
    assert "Not decided" in cli.out and "What would help" in cli.out
    assert "nfeasible" not in cli.out + cli.err
    assert cli("plan", request, "--no-store", "--json") == EXIT_NO
    assert_undecided(cli.json())


class OnlyParts:
    """A limit that is over for the whole from the start, and never for a part: what a search begins with runs to its end."""

    def __call__(self) -> bool:
        return True

    def part(self, share: float) -> Stop:
        return never_stop


@pytest.mark.slow
def test_a_free_search_without_time_answers_with_the_launchable_plan_that_it_begins_with() -> None:
    cluster = {"catalog": "dgx-h100", "nodes": 4}
    launchable = api.solve(resolved(training(cluster=cluster)), stop=never_stop, progress=ignore_progress)
    seen: list[Plan] = []

    def listen(progress: Progress) -> None:
        plan = None if progress.incumbent is None else progress.incumbent()
        if plan is not None:
            seen.append(plan)

    free = resolved(training(cluster=cluster, search={"space": "free"}))
    plan = api.solve(free, stop=OnlyParts(), progress=listen)
    least_s, most_s, bound_s = plan.certificate.objective, launchable.certificate.objective, plan.certificate.bound
    assert plan.certificate.status is Status.FEASIBLE and plan.certificate.space.startswith("free")
    assert least_s is not None and most_s is not None and bound_s is not None
    assert bound_s < least_s <= most_s
    assert seen and all(each.certificate.space == plan.certificate.space for each in seen)
