"""The kind of search choices that a candidate's mesh has beside its degrees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from meshwright.solver.problem.choice import Choice
from meshwright.solver.problem.choices import Launcher


class Degrees(Protocol):
    """The degrees of a mesh, and how many of its ranks hold the same experts."""

    @property
    def dp(self) -> int:
        """Replicas."""

    @property
    def pp(self) -> int:
        """Stages."""

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeStages:
    """Why stages that differ have the usual value of a choice alone: for those who ask for another, or give a plan of it."""

    asked: str
    given: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshChoice(Choice):
    """A choice of one of a few values, the usual one first.

    values         in order of preference among equals
    is_open        whether plans of such degrees differ by value; where they do not, they have the usual one
    launched_by    the values that a launcher can start on a mesh
    words          of values in the name of a candidate; those of the usual one are left out
    mechanisms     what must be set up for a value, in words
    unlike_stages  why stages that differ have the usual value alone
    """

    values: type[StrEnum]
    is_open: Callable[[int, int], bool]
    launched_by: Callable[[Launcher, Degrees], Collection[Any]]
    words: Mapping[Any, str]
    mechanisms: Mapping[Any, str]
    unlike_stages: UnlikeStages

    @property
    def usual(self) -> Any:
        """The value of plans that say nothing."""
        return next(iter(self.values))
