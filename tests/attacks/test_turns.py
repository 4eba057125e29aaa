"""A greedy tenant, and orderly restarts: neither keeps another's job from being solved, nor ends one as lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, update

from meshwright.app.base.errors import QueueFullError
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import Solver
from meshwright.app.requests.digests import keyed_request, plan_text
from meshwright.app.service.desk import JobDesk, JobEnd
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService, Submission
from meshwright.app.service.runner import MAX_LOSSES, MAX_LOSSES_IN_A_ROW, JobRunner
from meshwright.app.store.engine import open_engine, reading, writing
from meshwright.app.store.jobs import BegunJob, JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.tables import jobs
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Progress
from tests.crash.databases import postgresql_cluster, postgresql_programs, sqlite_file
from tests.support.fakes import FakeSolver, feasible_plan
from tests.support.requests_given import resolved, training
from tests.support.service import NoQueue

WITHIN_S = 180


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgresql" and postgresql_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with ExitStack() as stack:
        database = stack.enter_context(sqlite_file(tmp_path) if request.param == "sqlite" else postgresql_cluster())
        engine = open_engine(database.url)
        upgrade(engine)
        migrate_queue(database.url)
        yield engine
        engine.dispose()


def ask(engine: Engine, tenant: str, key: str, seed: int, urgency: int, most: int = 1000) -> Submission:
    queue = QueueClient(engine)
    try:
        service = PlanService(engine, queue, Settings(url_of(engine), max_waiting_jobs=most))
        caller = Principal(tenant, key, frozenset({Scope.ADMIN}))
        return service.submit(Call(caller, training(search={"seed": seed}), urgency=urgency))
    finally:
        queue.close()


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def worker(engine: Engine) -> subprocess.Popen[bytes]:
    """Start a worker with one slot, as the crash tests do."""
    code = "from tests.crash.worker import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, url_of(engine), "1", "30"], cwd=Path(__file__).parents[2])


def wait_until_started(engine: Engine, count: int) -> list[tuple[str, int]]:
    """Return tenant and urgency of the jobs that were begun, in their order, once there are so many."""
    begun = select(jobs.c.tenant, jobs.c.urgency).where(jobs.c.started_at.is_not(None)).order_by(jobs.c.started_at)
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        with reading(engine) as connection:
            found = [(row.tenant, row.urgency) for row in connection.execute(begun)]
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError("too few jobs were begun")


@pytest.mark.slow
def test_a_tenant_with_many_urgent_jobs_and_two_keys_leaves_another_its_turns(engine: Engine) -> None:
    for seed in range(40):
        ask(engine, "greedy", f"key:{seed % 2}", seed, urgency=0)
    for seed, urgency in ((0, 7), (1, 2)):
        ask(engine, "modest", "key:m", seed, urgency=urgency)
    process = worker(engine)
    try:
        begun = wait_until_started(engine, 6)
    finally:
        process.terminate()
        process.wait(60)
    modest = [place for place, (tenant, _) in enumerate(begun) if tenant == "modest"]
    assert len(modest) == 2, "both of its jobs are among the first, though they came last"
    assert max(modest) <= 3, "every second turn is the other tenant's"
    assert [begun[place][1] for place in modest] == [2, 7], "the urgent one of its own first"


@pytest.mark.slow_beyond(1)
def test_the_limit_of_waiting_jobs_is_the_tenants(engine: Engine) -> None:
    for seed in range(3):
        ask(engine, "greedy", f"key:{seed}", seed, urgency=3, most=3)
    with pytest.raises(QueueFullError):
        ask(engine, "greedy", "key:another", 3, urgency=3, most=3)
    assert ask(engine, "modest", "key:m", 3, urgency=3, most=3).job is not None


def test_every_workflow_brings_one_job_and_every_job_has_its_turn(engine: Engine) -> None:
    """Tickets that swap are neither lost nor used twice, also where a job is cancelled."""
    wanted = {ask(engine, tenant, "key", seed, urgency=seed % 8).job for tenant in "abc" for seed in range(5)}
    tickets = [job.id for job in wanted if job is not None]
    desk, begun = JobDesk(engine), []
    gone = tickets.pop()
    with writing(engine) as connection:
        connection.execute(update(jobs).where(jobs.c.id == gone).values(status=JobStatus.CANCELLED.value))
    assert desk.begin(gone, "w") is None
    for ticket in tickets:
        job = desk.begin(ticket, "w")
        assert job is not None
        begun.append(job.id)
        assert desk.finish(job, JobEnd(JobStatus.FAILED), then=lambda connection: None)
    assert sorted(begun) == sorted(tickets)


def test_restarts_in_order_are_no_losses(engine: Engine) -> None:
    submitted = ask(engine, "a", "key", 0, urgency=3).job
    assert submitted is not None
    desk = JobDesk(engine)
    for _ in range(2 * MAX_LOSSES_IN_A_ROW):
        assert desk.begin(submitted.id, "w") is not None
        desk.note_hand_back([submitted.id])
    assert run(engine, submitted.id) == (JobStatus.SUCCEEDED.value, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("tests.attacks.long_worker", "1", "60"), ("tests.attacks.slow_worker",)], ids=["solving", "starting"]
)
def test_a_signal_to_all_processes_of_a_worker_gives_its_job_back(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """As a terminal and systemd send it: to the fork server and the child that solves as well."""
    module, *more = arguments
    with sqlite_file(tmp_path) as database:
        engine = open_engine(database.url)
        upgrade(engine)
        migrate_queue(database.url)
        submitted = ask(engine, "a", "key", 0, urgency=3).job
        assert submitted is not None
        command = [sys.executable, "-c", f"from {module} import main; main()", database.url, *more]
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
        until_s = time.monotonic() + WITHIN_S
        while state(engine)[0] != JobStatus.RUNNING.value:
            assert time.monotonic() < until_s and process.poll() is None
            time.sleep(0.1)
        # Past the moment at which its child, or the fork server, is begun.
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=WITHIN_S)
        assert state(engine) == (JobStatus.QUEUED.value, None), said.decode()
        assert b"Traceback" not in said, said.decode()
        engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(("losses", "status"), [(MAX_LOSSES - 1, "succeeded"), (MAX_LOSSES, "failed")])
def test_losses_after_attempts_that_got_on_end_no_job_until_they_are_very_many(
    engine: Engine, losses: int, status: str
) -> None:
    submitted = ask(engine, "a", "key", 0, urgency=3).job
    assert submitted is not None
    with writing(engine) as connection:
        connection.execute(update(jobs).values(attempt=losses - 1, forgiven=losses - 2))
    begun = JobDesk(engine).begin(submitted.id, "lost")
    assert begun is not None and begun.losses_in_a_row == 1
    assert run(engine, submitted.id)[0] == status


class GettingOn(FakeSolver):
    """A solver whose worker is lost once it has told of a plan."""

    def __call__(self, request, on_beat=None):  # type: ignore[no-untyped-def]
        plan = feasible_plan(request)
        best = plan.certificate.objective
        on_beat(Progress(1, 2, best=best, bound=None, incumbent=lambda: plan))
        raise Lost


class Lost(BaseException):
    """The end of a worker without a word."""


def test_an_attempt_that_found_a_better_plan_forgives_the_losses_before_it_once(engine: Engine) -> None:
    submitted = ask(engine, "a", "key", 0, urgency=3).job
    assert submitted is not None
    for lost in range(MAX_LOSSES_IN_A_ROW - 1):
        assert JobDesk(engine).begin(submitted.id, "w") is not None, lost
    for _ in range(2):
        with pytest.raises(Lost):
            run(engine, submitted.id, solver=GettingOn())
    begun = JobDesk(engine).begin(submitted.id, "w")
    assert begun is not None
    # The second found the same plan again: it got no further, and is lost like any other.
    assert (begun.losses, begun.losses_in_a_row) == (MAX_LOSSES_IN_A_ROW + 1, 2)


def test_an_attempt_that_lives_forgives_the_losses_before_it(engine: Engine) -> None:
    submitted = ask(engine, "a", "key", 0, urgency=3).job
    assert submitted is not None
    for _ in range(MAX_LOSSES_IN_A_ROW - 1):
        JobDesk(engine).begin(submitted.id, "w")

    class Living(FakeSolver):
        def __call__(self, request, on_beat=None):  # type: ignore[no-untyped-def]
            on_beat(None)
            raise Lost

    with pytest.raises(Lost):
        run(engine, submitted.id, solver=Living(), settled_s=0.0)
    begun = JobDesk(engine).begin(submitted.id, "w")
    assert begun is not None and begun.losses_in_a_row == 1


@pytest.mark.slow_beyond(1)
def test_a_heavy_tenant_has_so_many_turns_for_each_of_another(engine: Engine) -> None:
    """One slot, jobs that take equally long, tenants of weight 3 and 1 who both always wait."""
    tickets = [ask(engine, tenant, "key", seed, urgency=3).job for seed in range(8) for tenant in ("heavy", "light")]
    desk, turns = JobDesk(engine, {"heavy": 3}), []
    for ticket in tickets[:8]:
        assert ticket is not None
        job = desk.begin(ticket.id, "w")
        assert job is not None
        turns.append(job.tenant)
        assert desk.finish(job, JobEnd(JobStatus.FAILED), then=lambda connection: None)
        # As long ago as it would be if each job took an hour.
        with writing(engine) as connection:
            connection.execute(update(jobs).where(jobs.c.id == job.id).values(started_at=datetime.now(UTC)))
            for row in connection.execute(select(jobs.c.id, jobs.c.started_at).where(jobs.c.started_at.is_not(None))).all():
                earlier = row.started_at - timedelta(hours=1)
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(started_at=earlier))
    assert (turns.count("heavy"), turns.count("light")) == (6, 2), turns


def test_a_heavy_tenant_has_so_many_slots_for_each_of_another(engine: Engine) -> None:
    tickets = [ask(engine, tenant, "key", seed, urgency=3).job for seed in range(4) for tenant in ("heavy", "light")]
    desk = JobDesk(engine, {"heavy": 3})
    begun = [desk.begin(ticket.id, "w") for ticket in tickets[:4] if ticket is not None]
    assert sorted(job.tenant for job in begun if job is not None) == ["heavy", "heavy", "heavy", "light"]


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_hands_its_job_back(engine: Engine) -> None:
    ask(engine, "a", "key", 0, urgency=3)
    code = "import tests.attacks.slow_worker as w; w.main()"
    process = subprocess.Popen([sys.executable, "-c", code, url_of(engine)], cwd=Path(__file__).parents[2])
    try:
        wait_until_started(engine, 1)
        process.terminate()
        process.wait(WITHIN_S)
    finally:
        process.kill()
    with reading(engine) as connection:
        row = connection.execute(select(jobs.c.attempt, jobs.c.hand_backs, jobs.c.status)).one()
    assert tuple(row) == (1, 1, JobStatus.QUEUED.value)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("ended_at", ["lost", "undecided"])
def test_the_best_plan_of_lost_attempts_is_the_answer(engine: Engine, ended_at: str) -> None:
    job = ask(engine, "a", "key", 0, urgency=3).job
    assert job is not None
    desk = JobDesk(engine)
    begun = desk.begin(job.id, "w")
    assert begun is not None
    key = keyed_request(resolved(training(search={"seed": 0})))
    best = plan_text(feasible_plan(key.request), key)
    assert desk.beat(begun, "{}", best=best)
    if ended_at == "lost":
        for _ in range(MAX_LOSSES_IN_A_ROW - 1):
            begun = desk.begin(job.id, "w")
        assert isinstance(begun, BegunJob) and begun.best == best
    status, answer = run(engine, job.id, undecided=ended_at == "undecided")
    assert (status, answer is None) == (JobStatus.SUCCEEDED.value, False)
    document = json.loads(answer or "")
    assert document["feasible"] and document["certificate"]["status"] == Status.FEASIBLE.value
    assert document["request"] == json.loads(best)["request"]
    assert "the best plan so far" in document["notes"][-1]


class Undecided(FakeSolver):
    """A solver that comes to no answer in its time."""

    def __call__(self, request, on_beat=None):  # type: ignore[no-untyped-def]
        from tests.support.fakes import undecided_plan

        return undecided_plan(request)


def run(
    engine: Engine, workflow: str, *, undecided: bool = False, solver: Solver | None = None, settled_s: float = 60.0
) -> tuple[str, str | None]:
    """Run the job to its end in this process; its status and answer."""
    from meshwright.app.service.batch import BatchStarter, Settler

    runner = JobRunner(
        JobDesk(engine),
        solver or (Undecided() if undecided else FakeSolver()),
        worker="w",
        then=Settler(engine),
        start_batch=BatchStarter(engine, NoQueue()),
        settled_s=settled_s,
    )
    runner(workflow)
    with reading(engine) as connection:
        row = connection.execute(select(jobs.c.status, jobs.c.answer)).one()
    return row.status, row.answer


def state(engine: Engine) -> tuple[str, str | None]:
    """Return the one job's status and problem."""
    with reading(engine) as connection:
        row = connection.execute(select(jobs.c.status, jobs.c.problem)).one()
    return row.status, row.problem
