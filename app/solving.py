"""Running the solver: in this process for the command line, in a child process of its own for the service.

A child keeps the service's event loop free, and can be ended when a solve does not come to its end.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Protocol

from app.errors import SolverCrashError, SolveTimeoutError
from costmodels.errors import MeshwrightError
from solver.control import OnProgress, ignore_progress
from solver.plan import Plan
from solver.request import PlanRequest

GRACE_S = 30.0
"""Time a child has after its limit to return the best plan so far and to pass the checker, before it is ended."""


class Solver(Protocol):
    """Makes plans, their digests still empty; may be called by several threads at once."""

    def __call__(self, request: PlanRequest) -> Plan:
        """The plan; raises InvalidInputError, SolveTimeoutError, SolverCrashError or PlanRejectedError."""
        ...

    def close(self) -> None:
        """End the solves that are running; their callers get a SolverCrashError."""
        ...


def solve_here(request: PlanRequest, on_progress: OnProgress = ignore_progress) -> Plan:
    """Solve in this process until the request's time limit, and note the CPU time it took."""
    from solver.api import solve

    began_s, deadline_s = time.process_time(), time.monotonic() + request.search.time_limit_s
    plan = solve(request, stop=lambda: time.monotonic() >= deadline_s, progress=on_progress)
    return replace(plan, search=replace(plan.search, seconds=time.process_time() - began_s))


def predict_here(request: PlanRequest, plan: Plan) -> Plan:
    """The plan with its figures predicted anew; raises InvalidInputError when it does not fit the request."""
    from solver.api import predict

    return predict(request, plan)


class ChildSolver:
    """Runs ``solve`` for each request in a child process, forked from a server process that has the solver loaded."""

    def __init__(self, solve: Callable[[PlanRequest], Plan] = solve_here, grace_s: float = GRACE_S) -> None:
        self._solve, self._grace_s = solve, grace_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["solver.api"])
        self._running: set[ForkServerProcess] = set()
        self._lock = threading.Lock()

    def __call__(self, request: PlanRequest) -> Plan:
        """The plan; a child that overstays its request's limit by ``grace_s`` is ended with SolveTimeoutError."""
        ours, theirs = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_solve_and_send, args=(theirs, self._solve, request), daemon=True)
        child.start()
        theirs.close()
        with self._lock:
            self._running.add(child)
        try:
            answer = _answer(ours, child, limit_s=request.search.time_limit_s + self._grace_s)
        finally:
            child.kill()
            child.join()
            ours.close()
            with self._lock:
                self._running.discard(child)
        if isinstance(answer, MeshwrightError):
            raise answer
        return answer

    def close(self) -> None:
        """End every child that is running."""
        with self._lock:
            for child in self._running:
                child.kill()


def _answer(answers: Connection, child: ForkServerProcess, *, limit_s: float) -> Plan | MeshwrightError:
    if not answers.poll(limit_s):
        return SolveTimeoutError(f"the solve was ended after {limit_s:g} s")
    try:
        answer: Plan | MeshwrightError = answers.recv()
    except EOFError:
        child.join()
        return SolverCrashError(f"the solve ended without an answer (exit code {child.exitcode})")
    return answer


def _solve_and_send(answers: Connection, solve: Callable[[PlanRequest], Plan], request: PlanRequest) -> None:
    answer: Plan | MeshwrightError
    try:
        answer = solve(request)
    except MeshwrightError as error:
        answer = error
    except Exception as error:
        # What crosses the pipe must unpickle over there whatever it was here.
        answer = SolverCrashError(f"the solve failed: {type(error).__name__}: {error}")
    answers.send(answer)
    answers.close()
