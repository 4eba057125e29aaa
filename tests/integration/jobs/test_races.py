"""Jobs that several processes deal with at once: none is left waiting, and none speaks for another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, event, select, text, update

from meshwright.app.base.settings import Settings
from meshwright.app.requests.digests import keyed_request
from meshwright.app.service.desk import JobDesk, JobEnd
from meshwright.app.service.engine import QueueClient, WorkflowState
from meshwright.app.service.planning import Call, PlanService, submit
from meshwright.app.service.worker import Reaper, Worker
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.jobs import BegunJob, Job, JobKind, JobRepository, JobStatus, NewJob
from meshwright.app.store.plans import plan_row
from meshwright.app.store.principal import LOCAL
from meshwright.app.store.tables import jobs
from tests.conftest import emptied
from tests.support.fakes import feasible_plan
from tests.support.requests_given import resolved, training
from tests.support.service import NoQueue

SILENT_S = 15.0
WITHIN_S = 60.0


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = open_engine(settings.database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def shared(postgresql: Engine) -> Iterator[Engine]:
    engine = open_engine(emptied(postgresql))
    yield engine
    engine.dispose()


def new_job(name: str, digest: str) -> NewJob:
    return NewJob(name, "local", JobKind.PLAN, digest, 3, "", "{}")


def submitted(engine: Engine, name: str, digest: str) -> Job:
    with writing(engine) as connection:
        return submit(engine, NoQueue(), connection, LOCAL.tenant, new_job(name, digest))[0]


def begun(engine: Engine, ticket: str) -> BegunJob:
    job = JobDesk(engine).begin(ticket, "w")
    assert job is not None
    return job


def nothing(connection: Connection) -> None:
    pass


def test_an_attempt_that_was_over_says_nothing_of_what_another_may_yet_find(engine: Engine) -> None:
    submitted(engine, "one", "d")
    lost, taken_over = begun(engine, "one"), begun(engine, "one")
    told: list[str] = []
    desk = JobDesk(engine)
    # As a worker ends that was frozen for longer than the solve may take.
    assert not desk.finish(lost, JobEnd(JobStatus.FAILED, problem="{}"), then=lambda _: told.append("failed"))
    assert not desk.finish(lost, JobEnd(JobStatus.SUCCEEDED, answer="{}"), then=lambda _: told.append("undecided"))
    assert told == [], "batches that wait for the plan wait for the other attempt"
    plan = plan_row(feasible_plan(resolved()), keyed_request(resolved()))
    assert not desk.finish(lost, JobEnd(JobStatus.SUCCEEDED, plan=plan), then=lambda _: told.append("plan"))
    assert desk.finish(taken_over, JobEnd(JobStatus.FAILED, problem="{}"), then=lambda _: told.append("failed"))
    assert told == ["plan", "failed"]


def test_a_lost_job_is_found_before_thousands_that_wait(engine: Engine) -> None:
    submitted(engine, "lost", "d")
    begun(engine, "lost")
    for number in range(3):
        submitted(engine, f"waits-{number}", f"d{number}")
    with writing(engine) as connection:
        connection.execute(update(jobs).values(beat_s=jobs.c.beat_s - 100))
        connection.execute(update(jobs).where(jobs.c.id == "lost").values(beat_s=jobs.c.beat_s + 50))
    assert [job.id for job in JobDesk(engine).silent(for_s=SILENT_S, limit=1)] == ["lost"]


class AllWait(QueueClient):
    """A queue in which every workflow waits for its turn."""

    def __init__(self) -> None:
        pass

    def states(self, workflows: object) -> dict[str, WorkflowState]:
        assert isinstance(workflows, list)
        return dict.fromkeys(workflows, WorkflowState.WAITING)


def test_jobs_that_wait_for_their_turn_are_noted_in_one_transaction(engine: Engine) -> None:
    for number in range(5):
        submitted(engine, f"waits-{number}", f"d{number}")
    with writing(engine) as connection:
        connection.execute(update(jobs).values(beat_s=jobs.c.beat_s - 100))
    written: list[str] = []

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        if statement.startswith("UPDATE"):
            written.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    assert Reaper(engine, AllWait(), silent_s=SILENT_S)() == 0
    assert len(written) == 1
    assert JobDesk(engine).silent(for_s=SILENT_S, limit=10) == ()


def test_a_job_ends_after_whoever_is_about_to_wait_for_it(shared: Engine) -> None:
    """Else what waits is written after the job looked for it, and waits for ever."""
    submitted(shared, "one", "d")
    job = begun(shared, "one")
    other = open_engine(shared.url.render_as_string(hide_password=False))
    seen: list[str] = []

    def look(connection: Connection) -> None:
        seen.extend(connection.execute(select(jobs.c.owner).where(jobs.c.id == "waits")).scalars())

    ending = threading.Thread(target=lambda: JobDesk(other).finish(job, JobEnd(JobStatus.FAILED, problem="{}"), then=look))
    with writing(shared) as connection:
        active, is_new = submit(shared, NoQueue(), connection, LOCAL.tenant, new_job("two", "d"))
        assert (active.id, is_new) == ("one", False)
        assert JobDesk(other).beat(job, None), "signs of life wait for nobody"
        ending.start()
        wait_until_blocked(connection, ending)
        # Stands for the item of a batch, or a question, that waits for the plan.
        assert JobRepository(shared, LOCAL.tenant).add(connection, replace(new_job("waits", "e"), owner="batch")) is not None
    ending.join(WITHIN_S)
    assert seen == ["batch"]
    other.dispose()


def wait_until_blocked(connection: Connection, thread: threading.Thread) -> None:
    """Wait until a thread waits for what the transaction of a connection holds, or has ended without."""
    blocked = text("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))")
    while thread.is_alive() and not connection.execute(blocked).scalar_one():
        thread.join(0.02)


def test_a_job_that_ends_amid_a_submission_is_followed_by_another(shared: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(shared, "one", "d")
    job = begun(shared, "one")
    add, other = JobRepository.add, open_engine(shared.url.render_as_string(hide_password=False))

    def add_late(self: JobRepository, connection: Connection, new: NewJob) -> Job | None:
        added = add(self, connection, new)
        JobDesk(other).finish(job, JobEnd(JobStatus.FAILED, problem="{}"), then=nothing)
        return added

    monkeypatch.setattr(JobRepository, "add", add_late)
    assert submitted(shared, "two", "d").id == "two"
    other.dispose()


def test_the_age_of_the_queue_is_in_no_zone_of_the_server(shared: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # The zone that a server of an operator in New York gives its times in (PostgreSQL's documentation, PGTZ).
    monkeypatch.setenv("PGTZ", "America/New_York")
    there = open_engine(shared.url.render_as_string(hide_password=False))
    submitted(there, "one", "d")
    assert JobDesk(there).state(worker_alive_s=8.0).oldest_s < timedelta(hours=1).total_seconds()
    there.dispose()


def test_a_call_that_was_made_long_ago_is_made_again_once_its_job_is_deleted(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, NoQueue(), settings)
    call = Call(LOCAL, training(), urgency=3, idempotency_key="k")
    first = service.submit(call).job
    assert first is not None
    with writing(engine) as connection:
        connection.execute(jobs.delete())
    again = service.submit(call).job
    assert again is not None and again.id != first.id


def test_a_duty_of_a_worker_that_fails_is_tried_again() -> None:
    worker, calls = object.__new__(Worker), 0
    worker._over = threading.Event()

    def duty() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            worker._over.set()
        raise RuntimeError("nobody thought of this")

    worker._regularly(0.0, duty)
    assert calls == 3
