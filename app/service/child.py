"""A function called in a process of its own, which is ended at a limit of time or memory: what a stranger asks may be large."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from asyncio import Lock, Semaphore
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

from meshwright.app.base.errors import NotBegunError, RateLimitedError, SolverCrashError
from meshwright.app.service.limited import FIRST_PRELOADED, live_within, memory_of_machine
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError

LIMIT_S = 60.0
"""Seconds that a question may take; what the first one waits until all is loaded is not counted."""
CPU_LIMIT_S = 20
"""Seconds of processor time that it may take."""
AT_ONCE = 2
"""Questions that a service answers beside one another, one of each tenant."""
WAIT_S = 5.0
"""Seconds that one more question of a service waits for its turn."""
LOOK_EVERY_S = 0.1
"""Time after which a question whose asker has gone is ended."""

START_PAUSES_S = (0.1, 0.5, 2.0)
"""Seconds before each further start of a question that did not begin."""

_PRELOADED = "meshwright.app.service.preloaded_questions"
"""Loaded once by the fork server: a question then starts in milliseconds."""

Document = Mapping[str, Any]
Answering = Callable[[Document], Document]
Given = TypeVar("Given")
Found = TypeVar("Found")


class Children:
    """The processes of a service that answer questions.

    memory_bytes   bytes that a question may take; less where the machine has less for all that are answered at once
    limit_s, cpu_limit_s   seconds that it may take, and seconds of processor time
    wait_s         seconds that one more question waits for its turn
    also_loaded    names of modules that the fork server loads besides the solver
    """

    def __init__(
        self,
        *,
        memory_bytes: int,
        limit_s: float = LIMIT_S,
        cpu_limit_s: int = CPU_LIMIT_S,
        wait_s: float = WAIT_S,
        also_loaded: Sequence[str] = (),
    ) -> None:
        # The service itself has a share, too.
        self._memory_bytes = min(memory_bytes, memory_of_machine() // (AT_ONCE + 1))
        self._limit_s, self._wait_s = limit_s, wait_s
        self._cpu_s = min(cpu_limit_s, int(limit_s) + 1)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([FIRST_PRELOADED, _PRELOADED, *also_loaded])
        self._turns, self._of_tenant = Semaphore(AT_ONCE), dict[str, Lock]()

    async def answer(self, tenant: str, answering: Answering, document: Document) -> Document:
        """Return what a function of a module makes of a document, when it is the tenant's turn. No thread waits for that.

        Raises what it raises; InvalidInputError for a question that takes too long or too much memory; RateLimitedError where
        others take all turns; SolverCrashError for a process that died.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._wait_s):
                    await stack.enter_async_context(self._of_tenant.setdefault(tenant, Lock()))
                    await stack.enter_async_context(self._turns)
            except TimeoutError:
                said = "the service answers as many questions as it can at once"
                raise RateLimitedError(said, wait_s=int(self._wait_s)) from None
            nobody_waits = threading.Event()
            try:
                return await asyncio.to_thread(self.answer_now, answering, document, nobody_waits)
            finally:
                nobody_waits.set()

    def start(self) -> None:
        """Have the server load what it forks children from, so that the first question need not wait for it."""
        forkserver.ensure_running()

    def answer_now(
        self, answering: Callable[[Given], Found], given: Given, nobody_waits: threading.Event | None = None
    ) -> Found:
        """Return what the function makes of a document without waiting for a turn; raises as ``answer`` but for that.

        What is given and what is found cross a pipe: both must pickle. The process is ended when ``nobody_waits`` is set.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        task = (theirs, answering, given, self._memory_bytes, self._cpu_s)
        child = self._context.Process(target=_answer_and_send, args=task, daemon=True)
        try:
            _start(child, nobody_waits)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            until_s = time.monotonic() + self._limit_s
            while not ours.poll(LOOK_EVERY_S):
                if nobody_waits is not None and nobody_waits.is_set():
                    raise SolverCrashError("the question was ended: nobody waits for its answer")
                if time.monotonic() >= until_s:
                    raise _too_much(f"{self._limit_s:g} s")
            found: Found | MeshwrightError = ours.recv()
        except EOFError:
            child.join()
            if child.exitcode == -signal.SIGXCPU:
                raise _too_much(f"{self._cpu_s} s of processor time") from None
            raise SolverCrashError("the question's process ended without an answer") from None
        finally:
            child.kill()
            child.join()
            ours.close()
        if isinstance(found, MeshwrightError):
            raise found
        return found


def _start(child: ForkServerProcess, nobody_waits: threading.Event | None) -> None:
    """Start a child, again after each of START_PAUSES_S while the server that forks it can't; raises NotBegunError."""
    for pause_s in (*START_PAUSES_S, None):
        try:
            child.start()
        except (EOFError, OSError) as error:
            if pause_s is None or (nobody_waits is not None and nobody_waits.wait(pause_s)):
                raise NotBegunError(f"the question could not be started: {type(error).__name__}") from error
            if nobody_waits is None:
                time.sleep(pause_s)
        else:
            return


def _answer_and_send(
    messages: Connection, answering: Callable[[Given], Found], given: Given, memory_bytes: int, cpu_s: int
) -> None:
    live_within(cpu_s=cpu_s, memory_bytes=memory_bytes)
    found: Found | MeshwrightError
    try:
        found = answering(given)
    except MeshwrightError as error:
        found = error
    except MemoryError:
        found = _too_much(f"{memory_bytes} bytes of memory")
    except Exception as error:
        # What crosses the pipe must unpickle over there whatever it was here.
        found = SolverCrashError(f"the question failed: {type(error).__name__}: {error}")
    messages.send(found)
    messages.close()


def _too_much(limit: str) -> InvalidInputError:
    return InvalidInputError(
        "the question takes more than it may",
        allowed=limit,
        remedy="ask for a smaller load, or on the command line, which has no such limit",
    )
