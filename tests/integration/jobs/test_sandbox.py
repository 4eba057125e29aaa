"""Solves in child processes: answers, errors, deaths and time limits come back as they should."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

import pytest

from meshwright.app.base.errors import NotBegunError, SolverCrashError
from meshwright.app.base.solving import SolveFunction, solve_here
from meshwright.app.service import child, sandbox
from meshwright.app.service.child import Children
from meshwright.app.service.sandbox import BEAT_S, ChildSolver, Limits
from meshwright.costmodels.errors import PlanRejectedError, WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Progress
from meshwright.solver.problem.request import PlanRequest
from tests.support.fakes import feasible_plan, infeasible_plan
from tests.support.requests_given import resolved, training

SOON = training(search={"time_limit_s": 0.05})


def sleeps(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    while True:
        time.sleep(1)


def dies(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    os._exit(7)


def refuses(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    raise WorkloadError("no such workload", given=1, allowed="2")


def is_refused(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    raise PlanRejectedError("a stage is missing")


def breaks(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    raise ZeroDivisionError("division by zero")


def answers(request: PlanRequest, on_progress: OnProgress) -> Plan:
    return feasible_plan(request)


def hoards(request: PlanRequest, on_progress: OnProgress) -> Plan:
    return infeasible_plan(request) if bytearray(4 * 2**30) else feasible_plan(request)


def spins(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass


def tells(request: PlanRequest, on_progress: OnProgress) -> Plan:
    on_progress(Progress(1, 2, best=4.0, bound=3.0))
    time.sleep(2 * BEAT_S)
    return feasible_plan(request)


def test_the_plan_comes_back() -> None:
    request = resolved()
    assert ChildSolver(answers)(request) == feasible_plan(request)


def test_bad_input_comes_back_with_its_parts() -> None:
    with pytest.raises(WorkloadError) as caught:
        ChildSolver(refuses)(resolved())
    assert (caught.value.problem, caught.value.given, caught.value.allowed) == ("no such workload", 1, "2")


@pytest.mark.parametrize(
    ("solve", "error", "said"),
    [
        (dies, SolverCrashError, "exit code 7"),
        (is_refused, PlanRejectedError, "a stage is missing"),
        (breaks, SolverCrashError, "ZeroDivisionError: division by zero"),
    ],
)
def test_failures_come_back(solve: SolveFunction, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ChildSolver(solve)(resolved())


def assert_undecided(plan: Plan, why: str) -> None:
    assert not plan.feasible and not plan.is_decided
    assert plan.certificate.status is Status.UNDECIDED
    assert why in plan.notes[-1]


def test_a_child_that_overstays_is_ended() -> None:
    assert_undecided(ChildSolver(sleeps, Limits(grace_s=0.05))(resolved(SOON)), "was ended after")


def test_a_child_that_wants_too_much_memory_is_refused_it() -> None:
    assert_undecided(ChildSolver(hoards, Limits(memory_bytes=2**30))(resolved()), str(2**30))


def test_a_child_out_of_cpu_time_is_ended() -> None:
    assert_undecided(ChildSolver(spins)(resolved()), "CPU")


def test_progress_comes_while_it_solves() -> None:
    heard: list[Progress | None] = []
    ChildSolver(tells)(resolved(), heard.append)
    assert Progress(1, 2, best=4.0, bound=3.0) in heard


def test_a_caller_that_loses_interest_ends_the_child() -> None:
    def leave(progress: Progress | None) -> None:
        raise KeyError("cancelled")

    began_s = time.monotonic()
    with pytest.raises(KeyError):
        ChildSolver(sleeps)(resolved(), leave)
    assert time.monotonic() - began_s < 20


def test_close_ends_running_children() -> None:
    solver = ChildSolver(sleeps)
    errors: list[Exception] = []

    def call() -> None:
        try:
            solver(resolved())
        except SolverCrashError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not errors and thread.is_alive():
        solver.close()
        thread.join(0.05)
    assert len(errors) == 1


def tells_and_sleeps(request: PlanRequest, on_progress: OnProgress) -> NoReturn:
    print(os.getpid(), flush=True)
    sleeps(request, on_progress)


@pytest.mark.slow
def test_a_child_ends_with_a_worker_that_is_killed() -> None:
    code = (
        "from meshwright.app.service.sandbox import ChildSolver\n"
        "from tests.integration.jobs.test_sandbox import tells_and_sleeps\n"
        "from tests.support.requests_given import resolved, training\n"
        "ChildSolver(tells_and_sleeps)(resolved(training()))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.kill()
        # The pipe ends with the last process that holds it: worker, fork server and child.
        ended, _, _ = select.select([worker.stdout], [], [], 60)
        if not ended:
            os.kill(child, signal.SIGKILL)
        assert ended and worker.stdout.read() == b""


def test_solve_here_stops_at_the_limit_and_notes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.solver import api

    def waits_for_stop(request: PlanRequest, *, stop: Callable[[], bool], progress: object) -> Plan:
        while not stop():
            pass
        return feasible_plan(request)

    monkeypatch.setattr(api, "solve", waits_for_stop)
    assert solve_here(resolved(SOON)).search.seconds > 0


@pytest.mark.slow
def test_a_caller_is_told_of_a_start_that_takes_long_and_may_leave_it() -> None:
    """In a process of its own: the server that children are forked from loads its modules once."""
    code = (
        "import time\n"
        "from meshwright.app.service.sandbox import ChildSolver\n"
        "from tests.integration.jobs.test_sandbox import sleeps\n"
        "from tests.support.requests_given import resolved, training\n"
        "beats = []\n"
        "def beat(progress):\n"
        "    beats.append(progress)\n"
        "    if len(beats) == 2: raise KeyError('cancelled')\n"
        "solver = ChildSolver(sleeps, preload='tests.attacks.long_warm_up')\n"
        "try: solver(resolved(training()), beat)\n"
        "except KeyError: print(len(beats))\n"
        "solver.close()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "2\n"


@pytest.mark.parametrize(
    "raised", [EOFError(), ConnectionRefusedError(), BrokenPipeError(), BlockingIOError(), FileNotFoundError()]
)
def test_a_solve_that_can_not_be_started_is_started_again(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    """The fork server dies as it starts, its socket is gone, or the system has no process left: each for a while."""
    starts = failing_starts(monkeypatch, raised, times=2)
    monkeypatch.setattr(sandbox, "START_PAUSES_S", (0.0, 0.0, 0.0))
    assert ChildSolver(answers)(resolved()) == feasible_plan(resolved())
    assert len(starts) == 3


def test_a_question_that_can_not_be_started_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = failing_starts(monkeypatch, EOFError(), times=2)
    monkeypatch.setattr(child, "START_PAUSES_S", (0.0, 0.0))
    assert Children(memory_bytes=2**30).answer_now(len, [1, 2]) == 2
    assert len(starts) == 3


def test_a_solve_whose_child_dies_before_it_begins_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one does whose fork server is killed while it is made."""
    monkeypatch.setattr(sandbox, "START_PAUSES_S", (0.0,))
    assert ChildSolver(DiesOnArrival(str(tmp_path / "died")))(resolved()) == feasible_plan(resolved())
    assert (tmp_path / "died").exists()


def test_a_solve_that_never_starts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = failing_starts(monkeypatch, EOFError(), times=100)
    monkeypatch.setattr(sandbox, "START_PAUSES_S", (0.0, 0.0))
    with pytest.raises(NotBegunError, match="could not be started: EOFError"):
        ChildSolver(answers)(resolved())
    assert len(starts) == 3


def test_a_solve_that_died_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = failing_starts(monkeypatch, EOFError(), times=0)
    with pytest.raises(SolverCrashError, match="exit code 7"):
        ChildSolver(dies)(resolved())
    assert len(starts) == 1


def failing_starts(monkeypatch: pytest.MonkeyPatch, raised: Exception, *, times: int) -> list[None]:
    """Have the first starts of children fail; return the list that each start is added to."""
    starts: list[None] = []
    start = ForkServerProcess.start

    def counted(process: ForkServerProcess) -> None:
        starts.append(None)
        if len(starts) <= times:
            raise raised
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", counted)
    return starts


class DiesOnArrival:
    """A solve whose first child ends as it unpickles what it is to do, so before it begins."""

    def __init__(self, mark: str):
        self.mark = mark

    def __setstate__(self, state: dict[str, str]) -> None:
        if not Path(state["mark"]).exists():
            Path(state["mark"]).touch()
            os._exit(9)
        self.__dict__ |= state

    def __call__(self, request: PlanRequest, on_progress: OnProgress) -> Plan:
        return feasible_plan(request)
