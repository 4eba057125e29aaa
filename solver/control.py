"""The steering of a search by its caller: when to stop, and where progress goes. Both are arguments, never globals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from meshwright.solver.answer.plan import Plan


class Stop(Protocol):
    """Asked between units of work; True ends the search with the best answer so far."""

    def __call__(self) -> bool:
        """Return True if the search is to stop now."""
        ...


@runtime_checkable
class DivisibleStop(Stop, Protocol):
    """A rule that knows what is left until it ends the search, and can give a part of the search a share of that."""

    def part(self, share: float) -> Stop:
        """The rule of a part that begins now and may take this share, 0 to 1, of what is left."""
        ...


@runtime_checkable
class WeighingStop(Stop, Protocol):
    """A rule that bounds work: it is told of units that take far longer than one look stands for."""

    def spend(self, work: float) -> None:
        """Count so many looks beside those that were asked."""
        ...


def spend(stop: Stop, work: float) -> None:
    """Tell a rule that bounds work of so much; others go by the clock."""
    if isinstance(stop, WeighingStop):
        stop.spend(work)


def part_of(stop: Stop, share: float) -> Stop:
    """The rule of a part of a search; the rule of all of it where that can't be divided."""
    return stop.part(share) if isinstance(stop, DivisibleStop) else stop


class SearchStopped(Exception):
    """Raised within a unit of work when the search is to end; whoever began the unit learns of it by `unit_of_work`."""


def heed(stop: Stop) -> None:
    """Raise SearchStopped if the rule says so; within a `unit_of_work` alone."""
    if stop():
        raise SearchStopped


@dataclass(slots=True)
class UnitOfWork:
    """A part of a search that ends early when its rule says so: ``was_stopped`` tells if it did."""

    was_stopped: bool = False


@contextmanager
def unit_of_work() -> Iterator[UnitOfWork]:
    """Within this the rule may be heeded: a unit that it ends is left, and no SearchStopped goes any further."""
    unit = UnitOfWork()
    try:
        yield unit
    except SearchStopped:
        unit.was_stopped = True


class Incumbent(Protocol):
    """The best plan so far, made when it is asked for: a listener that does not want it pays nothing for it."""

    def __call__(self) -> Plan | None:
        """The plan with the certificate of this moment, if asked for at once; None when it does not answer the request."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a search: ``done`` of ``total`` units, the best objective so far and the proven bound, both or neither."""

    done: int
    total: int
    best: float | None = None
    bound: float | None = None
    note: str = ""
    incumbent: Incumbent | None = None


class OnProgress(Protocol):
    """Receives progress; must be cheap and must not raise."""

    def __call__(self, progress: Progress) -> None:
        """Take note of a moment of the search."""
        ...


def never_stop() -> bool:
    """The stopping rule of a search that runs to its proven end."""
    return False


def ignore_progress(progress: Progress) -> None:
    """The listener of a caller that does not watch."""


def steps_of(listener: OnProgress) -> OnProgress:
    """A listener of a part whose figures are not those of the whole search: it tells of its steps alone."""

    def tell(progress: Progress) -> None:
        listener(replace(progress, best=None, bound=None, incumbent=None))

    return tell
