"""A solve in a child process of its own, with limits on wall time, CPU time and memory.

A child keeps the parent free and can be ended when a solve does not come to its end: the answer is then the best plan that it
had found, or that the question is open. Children are forked from a server process that has the solver loaded, so a start costs
milliseconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from meshwright.app.base.errors import NotBegunError, SolveMemoryError, SolverCrashError, SolveTimeoutError
from meshwright.app.base.solving import OnBeat, SolveFunction, ignore_beat, solve_here
from meshwright.app.service.limited import FIRST_PRELOADED, end_fork_server, live_within
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Progress
from meshwright.solver.problem.request import PlanRequest

# The answer of a solve that was ended at a limit: the best plan that it had told of, or that its question is open.

log = logging.getLogger(__name__)

_TIME_REMEDIES = ("raise search.time_limit_s", "restrict the space in 'search'", "leave search.space launchable")
_MEMORY_REMEDIES = ("restrict the space in 'search'", "raise MESHWRIGHT_MAX_SOLVE_MEMORY_BYTES of the service")


class SoFar:
    """The reports of a running solve: its best plan, which the child's checker has passed, and how many candidates it took."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._considered = 0

    def hear(self, progress: Progress) -> None:
        """Take note of a moment of the search."""
        self._considered = max(self._considered, progress.done)
        plan = None if progress.incumbent is None else progress.incumbent()
        if plan is not None:
            self._plan = plan

    def answer(self, request: PlanRequest, why: MeshwrightError) -> Plan:
        """The best plan so far, feasible with the gap it had then; else the answer that nothing is found yet."""
        if self._plan is not None:
            return best_so_far(self._plan, str(why))
        from meshwright.solver.api import undecided

        remedies = _MEMORY_REMEDIES if isinstance(why, SolveMemoryError) else _TIME_REMEDIES
        plan = undecided(request, considered=self._considered, remedies=remedies)
        return replace(plan, notes=(*plan.notes, str(why)))


def best_so_far(plan: Plan, why: str) -> Plan:
    """The best plan of a search that was ended, as its answer: feasible with the gap it had then."""
    # Its search may have been at its end for all we know, but nobody proved that here.
    certificate = plan.certificate
    if certificate.status is Status.OPTIMAL:
        certificate = replace(certificate, status=Status.FEASIBLE)
    return replace(plan, certificate=certificate, notes=(*plan.notes, f"the best plan so far: {why}"))


GRACE_S = 30.0
"""Time a child has after its limit to return the best plan so far and to pass the checker, before it is ended."""
START_PAUSES_S = (0.1, 1.0, 5.0, 15.0)
"""Seconds before each further start of a solve that did not begin: a server that forks it loads for some seconds."""

BEAT_S = 1.0
"""The time between two calls of ``on_beat`` during a solve, and while its child starts."""
PROGRESS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a child: seconds beyond its request's time limit, and bytes of memory of its own (None: no limit)."""

    grace_s: float = GRACE_S
    memory_bytes: int | None = None


class ChildSolver:
    """Runs a solve for each request in a child process; may be called by several threads at once."""

    def __init__(
        self, solve: SolveFunction = solve_here, limits: Limits | None = None, *, preload: str = "meshwright.solver.api"
    ) -> None:
        self._solve, self._limits = solve, limits or Limits()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([FIRST_PRELOADED, preload])
        self._running: set[ForkServerProcess] = set()
        self._starting = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ignore_beat) -> Plan:
        """The plan; of a child that was ended at a limit the best so far, or an undecided answer.

        Raises what the solve raises, SolverCrashError for a child that died, and what ``on_beat`` raises. A child that did not
        begin, since the server that forks it died or the system had nothing left, is started again after START_PAUSES_S each.
        """
        for pause_s in START_PAUSES_S:
            try:
                return self._solved(request, on_beat)
            except NotBegunError as error:
                if self._is_closed:
                    raise
                log.warning("will start the solve again: %s", error)
            until_s = time.monotonic() + pause_s
            while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
                on_beat(None)
                time.sleep(min(BEAT_S, left_s))
        return self._solved(request, on_beat)

    def _solved(self, request: PlanRequest, on_beat: OnBeat) -> Plan:
        """The same by one child; raises NotBegunError for one that did not begin."""
        ours, theirs = self._context.Pipe(duplex=False)
        wall_s = request.search.time_limit_s + self._limits.grace_s
        task = _Task(self._solve, request, cpu_s=wall_s, memory_bytes=self._limits.memory_bytes)
        child = self._context.Process(target=_solve_and_send, args=(theirs, task), daemon=True)
        try:
            self._start_beating(child, on_beat)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        so_far = SoFar()
        try:
            answer = _answer(ours, child, limit_s=wall_s, on_beat=on_beat, so_far=so_far)
        finally:
            self._end(child)
            ours.close()
        if isinstance(answer, SolveTimeoutError | SolveMemoryError):
            if self._is_closed:
                raise SolverCrashError("the solve was ended, as its worker ends")
            return so_far.answer(request, answer)
        if isinstance(answer, MeshwrightError):
            raise answer
        return answer

    def close(self) -> None:
        """End every child that is running or about to start; their callers get a SolverCrashError."""
        with self._lock:
            self._is_closed = True
            for child in self._running:
                child.kill()
            if self._starting:
                # A child starts when the server has loaded the solver, which may take minutes: nobody waits for that at an end.
                end_fork_server()

    def _start_beating(self, child: ForkServerProcess, on_beat: OnBeat) -> None:
        """Start a child, in a thread: the first waits until the server has loaded the solver, and its job must be seen to live.

        A child whose caller loses interest before it has started is ended as soon as it has.
        """
        start = ThreadPoolExecutor(1, thread_name_prefix="child-start")
        started = start.submit(self._start, child)
        start.shutdown(wait=False)
        try:
            while not wait((started,), timeout=BEAT_S).done:
                on_beat(None)
        except BaseException:
            started.add_done_callback(lambda ended: None if ended.exception() else self._end(child))
            raise
        started.result()

    def _end(self, child: ForkServerProcess) -> None:
        child.kill()
        child.join()
        with self._lock:
            self._running.discard(child)

    def _start(self, child: ForkServerProcess) -> None:
        with self._lock:
            if self._is_closed:
                raise SolverCrashError("no solve is begun any more, as its worker ends")
            self._starting += 1
        try:
            child.start()
        except (EOFError, OSError) as error:
            raise NotBegunError(f"the solve could not be started: {type(error).__name__}") from error
        finally:
            with self._lock:
                self._starting -= 1
        with self._lock:
            self._running.add(child)
            if self._is_closed:
                child.kill()


@dataclass(frozen=True)
class _Begun:
    """The first message of a child: it has all that it needs to solve."""


@dataclass(frozen=True)
class _Task:
    solve: SolveFunction
    request: PlanRequest
    cpu_s: float
    memory_bytes: int | None


def _answer(
    messages: Connection, child: ForkServerProcess, *, limit_s: float, on_beat: OnBeat, so_far: SoFar
) -> Plan | MeshwrightError:
    """Return the last message of the child; its progress goes to ``so_far`` and to ``on_beat``, at least once every BEAT_S."""
    began_s = beat_s = time.monotonic()
    news: Progress | None = None
    has_begun = False
    while True:
        now_s = time.monotonic()
        if now_s - began_s >= limit_s:
            return SolveTimeoutError(f"the solve was ended after {limit_s:g} s")
        if now_s - beat_s >= BEAT_S:
            on_beat(news)
            beat_s, news = now_s, None
        if not messages.poll(max(0.0, min(BEAT_S - (now_s - beat_s), limit_s - (now_s - began_s)))):
            continue
        try:
            message: Plan | MeshwrightError | Progress | _Begun = messages.recv()
        except (EOFError, OSError):
            death = _death(child)
            return death if has_begun else NotBegunError(f"the solve could not be started: {death}")
        if isinstance(message, _Begun):
            has_begun = True
            continue
        if not isinstance(message, Progress):
            return message
        so_far.hear(message)
        # A best plan may come between two beats, and news without one after it.
        kept = None if news is None else news.incumbent
        news = message if message.incumbent is not None else replace(message, incumbent=kept)


def _death(child: ForkServerProcess) -> MeshwrightError:
    child.join()
    if child.exitcode == -signal.SIGXCPU:
        return SolveTimeoutError("the solve was ended: it used all the CPU time it may")
    if child.exitcode == -signal.SIGKILL:
        # Nobody else kills it: what the kernel ends for want of memory.
        return SolveMemoryError("the solve was ended by the system, which had no memory left for it")
    return SolverCrashError(f"the solve ended without an answer (exit code {child.exitcode})")


def _solve_and_send(messages: Connection, task: _Task) -> None:
    """In the child: solve within the limits, and send progress and the answer."""
    live_within(cpu_s=int(task.cpu_s) + 1, memory_bytes=task.memory_bytes)
    messages.send(_Begun())
    answer: Plan | MeshwrightError
    try:
        answer = task.solve(task.request, _Throttle(messages.send))
    except MeshwrightError as error:
        answer = error
    except MemoryError:
        answer = SolveMemoryError(f"the solve needs more than {task.memory_bytes} bytes of memory, which is all it may use")
    except Exception as error:
        # What crosses the pipe must unpickle over there whatever it was here.
        answer = SolverCrashError(f"the solve failed: {type(error).__name__}: {error}")
    messages.send(answer)
    messages.close()


@dataclass(frozen=True, slots=True)
class _Made:
    """A best plan that has been made, as it crosses the pipe."""

    plan: Plan

    def __call__(self) -> Plan:
        return self.plan


class _Throttle:
    """Passes on the first of many progresses in each PROGRESS_EVERY_S, with the best plan when there is a new one.

    The first that has a plan passes at once: the next may never come.
    """

    def __init__(self, send: Callable[[Progress], None]):
        self._send, self._next_s = send, 0.0
        self._shown: float | None = None

    def __call__(self, progress: Progress) -> None:
        now_s = time.monotonic()
        is_first_plan = self._shown is None and progress.incumbent is not None
        if now_s >= self._next_s or is_first_plan:
            self._send(replace(progress, incumbent=self._made(progress)))
            # Counted from when it is sent: making a plan takes a while.
            self._next_s = time.monotonic() + PROGRESS_EVERY_S

    def _made(self, progress: Progress) -> _Made | None:
        if progress.incumbent is None or progress.best == self._shown:
            return None
        plan = progress.incumbent()
        self._shown = progress.best
        return None if plan is None else _Made(plan)
