"""Work on large bodies, one piece at a time in a thread of its own, taken fairly from tenant after tenant.

Reading a model graph of some megabytes takes seconds of processor time. On the event loop it would silence everybody; in as
many threads as there are bodies it would leave the loop too small a share of the interpreter. What waits is bounded by bytes
for each tenant and for all together, so that neither many bodies nor slow ones take more memory than this.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from meshwright.app.base.errors import BusyError, RateLimitedError
from meshwright.app.base.logs import logged_id, logging_for

if TYPE_CHECKING:
    from collections.abc import Iterator

P = ParamSpec("P")
Answer = TypeVar("Answer")

BODIES_OF_A_TENANT = 4
"""Bodies of the largest size that one tenant may have in hand at once."""

BODIES_OF_ALL = 16
"""The same of all tenants together: 128 MiB of text with the default limit."""

WAIT_S = 10
"""When a tenant that has too much in hand may try again: about what a body of the largest size takes."""

LARGE_BYTES = 2**20
"""A body from this size on leaves the allocator memory that is worth giving back to the system."""
GIVE_BACK_AFTER_S = 2.0
"""By then the request of a large body has been answered, and what was made of it is gone."""


@dataclass(frozen=True, slots=True)
class _Piece:
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class LongWork:
    """The large bodies that a service has in hand. For callers on one event loop."""

    def __init__(self, max_body_bytes: int):
        self._most_of_tenant = BODIES_OF_A_TENANT * max_body_bytes
        self._most_of_all = BODIES_OF_ALL * max_body_bytes
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[_Piece]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-work")
        self._working: asyncio.Task[None] | None = None
        self._giving_back: asyncio.TimerHandle | None = None

    @contextmanager
    def holding(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Give a function that counts bytes, announced or come; they are given back at the end.

        The function raises RateLimitedError when the tenant has too much in hand, BusyError when all have together: a tenant
        may have no more than is left, so that several that have much leave others room for short bodies at any time (dynamic
        thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6.2, 1998).
        """
        taken = 0

        def hold(n_bytes: int) -> None:
            nonlocal taken
            mine = self._held.get(tenant, 0) + n_bytes
            if mine > self._most_of_tenant:
                raise RateLimitedError(
                    f"bodies of {self._most_of_tenant} bytes together are read of one tenant at a time", WAIT_S
                )
            left = self._most_of_all - sum(self._held.values()) - n_bytes
            if mine > left:
                raise BusyError(f"bodies of {self._most_of_all} bytes together are read at a time; too little is left")
            self._held[tenant] = mine
            taken += n_bytes

        try:
            yield hold
        finally:
            left = self._held.get(tenant, 0) - taken
            if left > 0:
                self._held[tenant] = left
            else:
                self._held.pop(tenant, None)
            if taken >= LARGE_BYTES:
                self._give_back_soon()

    async def do(self, tenant: str, work: Callable[P, Answer], *arguments: P.args, **options: P.kwargs) -> Answer:
        """Return the answer of a piece of work when it is the tenant's turn. Raises what the work raises."""
        work_id = logged_id()

        def run() -> Answer:
            with logging_for(work_id), _no_collections():
                return work(*arguments, **options)

        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        piece = _Piece(run, future)
        self._waiting.setdefault(tenant, deque()).append(piece)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Leave what nobody has begun, and wait for the piece in hand."""
        for pieces in self._waiting.values():
            for piece in pieces:
                piece.future.cancel()
        self._waiting.clear()
        if self._giving_back is not None:
            self._giving_back.cancel()
        if self._working is not None:
            await asyncio.wait([self._working])
        self._thread.shutdown()

    def _give_back_soon(self) -> None:
        if self._giving_back is None:
            self._giving_back = asyncio.get_running_loop().call_later(GIVE_BACK_AFTER_S, self._give_back)

    def _give_back(self) -> None:
        self._giving_back = None
        if self._held:
            # Bodies that are in hand would be looked through, with Python's lock held.
            self._give_back_soon()
        else:
            self._thread.submit(_clean)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            piece = self._next()
            if piece.future.done():
                continue  # Its caller has gone.
            try:
                answer = await loop.run_in_executor(self._thread, piece.work)
            except Exception as error:
                if not piece.future.done():
                    piece.future.set_exception(error)
            else:
                if not piece.future.done():
                    piece.future.set_result(answer)

    def _next(self) -> _Piece:
        """Return the first piece of the tenant whose turn it is; that tenant is last then."""
        tenant, pieces = self._waiting.popitem(last=False)
        piece = pieces.popleft()
        if pieces:
            self._waiting[tenant] = pieces
        return piece


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector off, in the whole process, for as long as a piece takes.

    A document is a tree of a million objects without a cycle. Looking through all of it again and again took two thirds of the
    time: 3.0 s of processor for 4 MB, 1.1 s without it, and Python's lock was held for a third of a second each time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _clean() -> None:
    """Collect what large bodies left in cycles, and have glibc give free memory back to the system.

    9 MB of a body of 4 MB stay in a cycle; a process in which little else happens would keep them for long.
    """
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
