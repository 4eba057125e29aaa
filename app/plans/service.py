"""Making plans for many callers: each digest is solved once at a time, few solves run at once, the rest wait or are refused."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from app.errors import DocumentError, FieldError, TooBusyError
from app.plans.store import KeyedRequest, PlanStore, keyed_request, plan_text
from app.requests.resolve import NoFiles, resolve_request
from app.settings import Settings
from app.solving import Solver

log = logging.getLogger(__name__)


class PlanService:
    """Answers plan requests from the store, or solves them. Used from one event loop."""

    def __init__(self, store: PlanStore, solver: Solver, settings: Settings):
        self._store = store
        self._solver = solver
        self._settings = settings
        self._threads = ThreadPoolExecutor(max_workers=settings.max_solves, thread_name_prefix="solve")
        self._solving: dict[str, asyncio.Future[tuple[str, bool]]] = {}

    async def plan(self, document: object) -> tuple[str, bool]:
        """Text of the plan document for a parsed request document, and whether this call made it.

        Raises DocumentError on a faulty request, TooBusyError, SolveTimeoutError, SolverCrashError, StoreError.
        """
        key, stored = await asyncio.to_thread(self._look_up, document)
        if stored is not None:
            return stored, False
        # A caller that goes away must not end a solve that others wait for.
        running = self._solving.get(key.digest)
        if running is not None:
            text, _ = await asyncio.shield(running)
            return text, False
        return await asyncio.shield(self._start(key))

    def close(self) -> None:
        """End the running solves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._solver.close()

    def _look_up(self, document: object) -> tuple[KeyedRequest, str | None]:
        request = resolve_request(document, files=NoFiles())
        limit_s = self._settings.max_time_limit_s
        if request.search.time_limit_s > limit_s:
            fault = FieldError(
                "search.time_limit_s",
                "longer than this service solves",
                given=f"{request.search.time_limit_s:g}",
                allowed=f"at most {limit_s}",
            )
            raise DocumentError("this request can't be used", (fault,))
        key = keyed_request(request)
        return key, self._store.find(key.digest)

    def _start(self, key: KeyedRequest) -> asyncio.Future[tuple[str, bool]]:
        most = self._settings.max_solves + self._settings.max_waiting_solves
        if len(self._solving) >= most:
            raise TooBusyError(f"{len(self._solving)} solves run or wait, which is all this service takes; try again later")
        solve = asyncio.get_running_loop().run_in_executor(self._threads, self._solve, key)
        self._solving[key.digest] = solve
        solve.add_done_callback(lambda _: self._solving.pop(key.digest, None))
        return solve

    def _solve(self, key: KeyedRequest) -> tuple[str, bool]:
        log.info("solving", extra={"digest": key.digest, "model": key.request.model.name})
        plan = self._solver(key.request)
        # An answer that more time could change is given, not kept.
        text, is_new = self._store.keep(plan, key) if plan.is_decided else (plan_text(plan, key), False)
        log.info(
            "solved",
            extra={"digest": key.digest, "status": plan.certificate.status.value, "seconds": plan.search.seconds},
        )
        return text, is_new
