"""Running one job to its end, whatever the database does meanwhile."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import StoreError
from meshwright.app.base.logs import logging_for
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import Solver
from meshwright.app.edge.observability import Value, observe_failure, observe_solve, span
from meshwright.app.edge.problems import problem_of, worker_lost
from meshwright.app.requests.digests import KeyedRequest, plan_text
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.plan_documents import REQUEST_FIELD, join_texts, plan_document, read_plan
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.desk import JobDesk, JobEnd, OnFinished
from meshwright.app.service.sandbox import best_so_far
from meshwright.app.store.jobs import BegunJob, JobKind, JobStatus
from meshwright.app.store.plans import plan_row
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress

log = logging.getLogger(__name__)

MAX_LOSSES_IN_A_ROW = 10
"""A job that so many workers were lost over, one after the other and before any of them got on, is given up: it may be what
ends them. One that was told to stop is no loss."""
MAX_LOSSES = 100
"""The same of all lost workers: whatever ends them, so many attempts came to no end."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 5.0

Result = TypeVar("Result")
PrepareEnd = Callable[[BegunJob, JobEnd], OnFinished]
"""Works out what follows from the end of a job, before the transaction that ends it."""
StartBatch = Callable[[BegunJob, Callable[[], None]], None]
"""Finds out what a re-plan batch has to plan, calling back while it does."""


class JobLostError(Exception):
    """The job was cancelled, or another worker has it: what is being worked out for it is of no use."""


class WorkerStoppedError(Exception):
    """The worker ends: the job stays for another one."""


class _Standing:
    """The standing of one attempt: whether it has got on.

    That is, it has lived as long as its takeover would take, or found a better plan than all attempts before it. From then on
    attempts that were lost before it count no more.
    """

    def __init__(self, job: BegunJob, settled_s: float):
        self.job, self.has_got_on = job, False
        self._settled_at_s = time.monotonic() + settled_s

    def forgiven_now(self, news: News | None) -> int | None:
        """Return how many lost attempts are to be forgiven now; None for no change."""
        if self.has_got_on:
            return None
        is_further = news is not None and news.is_further
        return self.job.losses if is_further or time.monotonic() >= self._settled_at_s else None


class JobRunner:
    """Runs jobs for one worker; may be called by several threads at once."""

    def __init__(
        self,
        desk: JobDesk,
        solver: Solver,
        *,
        worker: str,
        then: PrepareEnd,
        start_batch: StartBatch,
        settled_s: float = Settings.takeover_after_s,
    ):
        self._desk, self._solver, self._worker, self._settled_s = desk, solver, worker, settled_s
        self._then, self._start_batch = then, start_batch
        self._stopped = threading.Event()

    def __call__(self, workflow: str) -> None:
        """Run the job whose turn a workflow brings, until it is final or another worker's; raises WorkerStoppedError."""
        job = self._insist(lambda: self._desk.begin(workflow, self._worker))
        if job is None:
            return
        attributes = {"meshwright.job": job.id, "meshwright.job.kind": job.kind.value, "meshwright.job.attempt": job.attempt}
        with logging_for(job.id):
            try:
                with span("job", attributes, parent=job.trace) as current:
                    end = self._end_of(job)
                    current.set_attribute("meshwright.job.status", end.status.value)
                then = self._insist(lambda: self._then(job, end))
                kept = self._insist(lambda: self._desk.finish(job, end, then=then))
                log.info("job ended", extra={"digest": job.digest, "status": end.status.value, "kept": kept})
            except JobLostError:
                log.info("job was cancelled or taken over", extra={"digest": job.digest})

    def stop(self) -> None:
        """Insist on nothing any more."""
        self._stopped.set()

    def _end_of(self, job: BegunJob) -> JobEnd:
        """Solve the job's request; what can go wrong with it becomes its problem."""
        if job.losses_in_a_row >= MAX_LOSSES_IN_A_ROW or job.losses >= MAX_LOSSES:
            return _given_up(job)
        standing = _Standing(job, self._settled_s)
        if job.kind is JobKind.BATCH:
            self._insist(lambda: self._start_batch(job, lambda: self._beat(standing)))
            return JobEnd(JobStatus.SUCCEEDED)
        if self._insist(lambda: self._desk.is_planned(job)):
            return JobEnd(JobStatus.SUCCEEDED)
        log.info("solving", extra={"digest": job.digest, "attempt": job.attempt})
        try:
            request = resolve_request(json.loads(job.request), files=NoFiles(), entry=Entry.STORED)
            key = KeyedRequest(request, job.digest, job.request)
            news = News(key, earlier=job.best)
            with span("solve", {"meshwright.digest": job.digest}) as current:
                plan = self._solver(request, lambda progress: self._beat(standing, progress, news))
                for name, value in _figures(plan).items():
                    current.set_attribute(name, value)
        except JobLostError:
            raise
        except Exception as error:
            if self._stopped.is_set():
                raise WorkerStoppedError from error
            observe_failure(error)
            problem = problem_of(error)
            log.log(logging.ERROR if problem["status"] >= 500 else logging.INFO, "job failed", exc_info=error)
            return JobEnd(JobStatus.FAILED, problem=compact_json(problem))
        observe_solve(plan)
        return _success(plan, key, earlier=job.best)

    def _beat(self, standing: _Standing, progress: Progress | None = None, news: News | None = None) -> None:
        said, best = (None, None) if progress is None or news is None else news.texts(progress)
        forgive = standing.forgiven_now(news)
        try:
            alive = self._desk.beat(standing.job, said, best=best, forgive=forgive)
        except StoreError as error:
            # The solve is worth more than one beat; when the database is back, the next one tells.
            log.warning("no beat: %s", error)
            return
        standing.has_got_on |= forgive is not None
        if not alive:
            raise JobLostError

    def _insist(self, call: Callable[[], Result]) -> Result:
        """Call until the database takes it: a restart, a full disk or a cut line must not lose a job."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                return call()
            except StoreError as error:
                log.warning("will try again: %s", error)
            if self._stopped.wait(wait_s):
                raise WorkerStoppedError
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)


def _figures(plan: Plan) -> dict[str, Value]:
    """Return the figures of a solve that its span holds."""
    figures: dict[str, Value] = {
        "meshwright.kind": plan.kind,
        "meshwright.status": plan.certificate.status.value,
        "meshwright.candidates": plan.search.candidates,
        "meshwright.cpu_seconds": plan.search.seconds,
    }
    return figures if plan.certificate.gap is None else figures | {"meshwright.gap": plan.certificate.gap}


def _given_up(job: BegunJob) -> JobEnd:
    """Return the end of a job that too many workers were lost over: the best plan of its attempts, if there is one."""
    problem = worker_lost(job.losses)
    if job.best is None:
        return JobEnd(JobStatus.FAILED, problem=compact_json(problem))
    return JobEnd(JobStatus.SUCCEEDED, answer=_earlier_answer(job.best, why=problem["detail"]))


def _success(plan: Plan, key: KeyedRequest, *, earlier: str | None) -> JobEnd:
    # An answer that more time could change is given, not kept.
    if plan.is_decided:
        return JobEnd(JobStatus.SUCCEEDED, plan=plan_row(plan, key))
    if earlier is not None:
        return JobEnd(JobStatus.SUCCEEDED, answer=_earlier_answer(earlier, why="a later attempt was ended before it found one"))
    return JobEnd(JobStatus.SUCCEEDED, answer=plan_text(plan, key))


def _earlier_answer(document: str, *, why: str) -> str:
    """Return the document of an earlier attempt's best plan as an answer, which says why it is no more than that."""
    fields = json.loads(document)
    request = compact_json(fields[REQUEST_FIELD])
    return join_texts(compact_json(plan_document(best_so_far(read_plan(fields), why))), request)


# The progress of a running job: how far its search is, and the best plan so far, as JSON texts.


class News:
    """Turns the progress of one attempt into texts; remembers what it said of the best plan, which does not come every time.

    earlier   document of the best plan that attempts before this one found: no worse one takes its place
    """

    def __init__(self, key: KeyedRequest, *, earlier: str | None = None):
        self._key = key
        plan = None if earlier is None else read_plan(json.loads(earlier))
        self._best: float | None = None if plan is None else plan.certificate.objective
        self._earlier = self._best
        self._best_plan = None if plan is None or earlier is None else _summary(plan, earlier)

    def texts(self, progress: Progress) -> tuple[str, str | None]:
        """The progress, and the document of the best plan if there is a new one."""
        plan = None if progress.incumbent is None else progress.incumbent()
        document = plan_text(plan, self._key) if plan is not None and self._is_better(plan) else None
        if plan is not None and document is not None:
            self._best, self._best_plan = plan.certificate.objective, _summary(plan, document)
        best, bound = progress.best, progress.bound
        gap = None if not best or bound is None else abs(best - bound) / abs(best)
        fields = {"done": progress.done, "total": progress.total, "best": best, "bound": bound, "gap": gap}
        return compact_json(fields | {"note": progress.note, "best_plan": self._best_plan}), document

    @property
    def is_further(self) -> bool:
        """True once the attempt has a better plan than all attempts before it."""
        return self._best is not None and (self._earlier is None or self._best < self._earlier)

    def _is_better(self, plan: Plan) -> bool:
        """Return True if a plan is no worse than the best so far; objectives are made as small as possible."""
        objective = plan.certificate.objective
        return self._best is None or (objective is not None and objective <= self._best)


def _summary(plan: Plan, document: str) -> dict[str, Any]:
    """Return the summary of a best plan that an event holds."""
    fields = record_of(plan)
    assert plan.predicted is not None and fields.axes is not None, "only feasible plans are the best so far"
    return {
        "digest": f"sha256:{hashlib.sha256(document.encode()).hexdigest()}",
        "objective": plan.certificate.objective,
        "unit": plan.certificate.unit,
        "bound": plan.certificate.bound,
        "gap": plan.certificate.gap,
        "devices": plan.devices,
        "tokens_per_s": plan.predicted.tokens_per_s,
        "peak_memory_bytes": plan.predicted.peak_memory_bytes,
        "axes": asdict(fields.axes),
        "microbatch": None if fields.microbatch is None else asdict(fields.microbatch),
        "schedule": fields.schedule,
    }
