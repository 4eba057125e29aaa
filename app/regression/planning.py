"""Planning many requests at once: each digest once, from the store where that is as good as solving, else in processes.

The time limit of a request is not applied: a plan that depends on how fast a machine is can't be locked. Work is limited
by ``search.max_candidates``, which ends a search at the same point everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Protocol

from meshwright.app.base.errors import StoreError
from meshwright.app.base.solving import Solver
from meshwright.app.requests.digests import KeyedRequest
from meshwright.app.requests.plan_documents import read_plan
from meshwright.app.store.plans import PlanStore
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import MAX_MEMORY_LIMIT_BYTES, MAX_TIME_LIMIT_S


class Planner(Protocol):
    """Plans the requests of a check."""

    def plan_all(self, requests: Iterable[KeyedRequest]) -> dict[str, Plan | MeshwrightError]:
        """The plan of every request by its digest, or why there is none."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlanner:
    """Plans on this machine: the store, the solver, how many at once, and where warnings go."""

    store: PlanStore | None
    solver: Solver
    jobs: int
    warn: Callable[[str], None]

    def plan_all(self, requests: Iterable[KeyedRequest]) -> dict[str, Plan | MeshwrightError]:
        """The plan of every request by its digest, or why there is none."""
        by_digest = {key.digest: key for key in requests}
        answers: dict[str, Plan | MeshwrightError] = {}
        for digest in by_digest:
            found = self._find(digest)
            if found is not None:
                answers[digest] = found
        return answers | self._solve_all({digest: key for digest, key in by_digest.items() if digest not in answers})

    def _find(self, digest: str) -> Plan | None:
        """The stored plan, if it is the one that solving would give."""
        if self.store is None:
            return None
        try:
            text = self.store.find(digest)
            plan = None if text is None else read_plan(json.loads(text))
        except (StoreError, InvalidInputError) as error:
            self.warn(f"warning: the stored plan can't be used, solving anew: {error}")
            return None
        return plan if plan is not None and is_proven(plan) else None

    def _solve_all(self, requests: Mapping[str, KeyedRequest]) -> dict[str, Plan | MeshwrightError]:
        answers: dict[str, Plan | MeshwrightError] = {}
        threads = ThreadPoolExecutor(max_workers=max(1, min(self.jobs, len(requests))), thread_name_prefix="solve")
        try:
            running = {threads.submit(self.solver, without_limits(key.request)): key for key in requests.values()}
            for done in as_completed(running):
                answers[running[done].digest] = self._kept(done, running[done])
        finally:
            # A search that is interrupted must not outlive the command.
            threads.shutdown(wait=False, cancel_futures=True)
            self.solver.close()
        return answers

    def _kept(self, done: Future[Plan], key: KeyedRequest) -> Plan | MeshwrightError:
        try:
            plan = done.result()
        except MeshwrightError as error:
            return error
        try:
            if self.store is not None and plan.is_decided:
                self.store.keep(plan, key)
        except StoreError as error:
            self.warn(f"warning: the plan was not stored: {error}")
        return plan


def without_limits(request: PlanRequest) -> PlanRequest:
    """The request with the highest limits of time and memory there are."""
    search = replace(request.search, time_limit_s=MAX_TIME_LIMIT_S, memory_limit_bytes=MAX_MEMORY_LIMIT_BYTES)
    return replace(request, search=search)


def is_proven(plan: Plan) -> bool:
    """Return True if the search ran to its end, so that every machine gives this plan."""
    return plan.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE)


def is_reproducible(plan: Plan, request: PlanRequest) -> bool:
    """Return True if every machine gives this plan: the search ran to its end, or to the request's count of candidates."""
    most = request.search.max_candidates
    return is_proven(plan) or (most is not None and plan.search.evaluated >= most)


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
