"""The limits of a solve: by work done, the same on any machine, or by a clock that the caller holds.

One unit of work is about one table entry visited by the reductions; 1.5 10^8 of them take about a second of one core. The
solver reports its work and asks how much of the budget is gone; a deadline ignores the reports and looks at its clock, a
work limit adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import Stop


class WorkStop(Protocol):
    """A stopping rule that also says how far along it is. Also a ``solver.control.Stop``."""

    def __call__(self) -> bool:
        """Return True if the solve is to stop now with the best answer so far."""
        ...

    def spend(self, work: float) -> None:
        """Take note of work done since the last report."""
        ...

    def used(self) -> float:
        """Share of the budget gone, from 0 at the start to 1 (or more) at the end."""
        ...

    def seconds_left(self) -> float:
        """Seconds until it stops by a clock, for phases that report nothing in between; inf without a clock."""
        ...


@dataclass
class WorkLimit:
    """Stops after this many units of work."""

    limit: float
    spent: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InvalidInputError("a work limit must be positive", given=self.limit, allowed="above 0")

    def __call__(self) -> bool:
        """Return True if the solve is to stop now."""
        return self.spent >= self.limit

    def spend(self, work: float) -> None:
        """Add work done."""
        self.spent += work

    def used(self) -> float:
        """Share of the budget gone."""
        return self.spent / self.limit

    def seconds_left(self) -> float:
        """No clock."""
        return float("inf")


@dataclass
class NoLimit:
    """Runs to the proven end; counts work for the answer."""

    spent: float = field(default=0.0, init=False)

    def __call__(self) -> bool:
        """Return True if the solve is to stop now."""
        return False

    def spend(self, work: float) -> None:
        """Add work done."""
        self.spent += work

    def used(self) -> float:
        """Share of the budget gone."""
        return 0.0

    def seconds_left(self) -> float:
        """No clock."""
        return float("inf")


@dataclass
class WhenStopped:
    """Stops when the rule of a whole search says so, which counts no work and need have no clock."""

    stop: Stop

    def __call__(self) -> bool:
        """Return True if the solve is to stop now."""
        return self.stop()

    def spend(self, work: float) -> None:
        """Nothing: the search counts no work."""

    def used(self) -> float:
        """Nothing until the end."""
        return 0.0

    def seconds_left(self) -> float:
        """No clock that is known here."""
        return float("inf")


@dataclass
class Until:
    """A part of a budget: stops when the whole has used this share, or after so much work of its own."""

    whole: WorkStop
    share: float = 1.0
    work_limit: float = float("inf")
    spent: float = field(default=0.0, init=False)

    def __call__(self) -> bool:
        """Return True if the solve is to stop now."""
        return self.whole() or self.spent >= self.work_limit or self.whole.used() >= self.share

    def spend(self, work: float) -> None:
        """Add work done."""
        self.spent += work
        self.whole.spend(work)

    def used(self) -> float:
        """Share of the budget gone."""
        return max(self.whole.used() / self.share, self.spent / self.work_limit)

    def seconds_left(self) -> float:
        """Seconds that the whole has left."""
        return self.whole.seconds_left()
