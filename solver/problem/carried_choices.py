"""The records in which candidates, stages and plans carry declared choices. Code that only passes them on takes a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from types import MappingProxyType
from typing import Any, Self

from meshwright.solver.problem.choice import Degrees, MeshChoice, RankedDegrees
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.declared.cp_keys import CP_KEYS, CpKeys
from meshwright.solver.problem.declared.rank_order import RANK_ORDER, RankOrder
from meshwright.solver.problem.declared.recompute_layers import LAUNCHERS, MECHANISM, UNDECIDED, in_words, read_words
from meshwright.solver.problem.declared.recompute_modules import (
    SELECTIVE_MODULES,
    USUAL_MODULES,
    mode_in_words,
    modules_of_words,
    words_of_modules,
)
from meshwright.solver.problem.search import Search

OF_MESHES: Mapping[str, MeshChoice] = MappingProxyType({"rank_order": RANK_ORDER, "cp_keys": CP_KEYS})
"""The choices of a mesh by their field in `MeshChoices`."""


# Without slots, so that the records of a plan can have its fields beside their own.
@dataclass(frozen=True)
class MeshChoices:
    """The choices of a mesh beside its degrees.

    rank_order   whether the ranks of a stage or of a replica lie together, where there are several of both
    cp_keys      whether cp ranks with the same heads pass keys and values around a ring, or gather all of them
    """

    rank_order: RankOrder = RankOrder.PP_OUTERMOST
    cp_keys: CpKeys = CpKeys.RING

    @classmethod
    def of(cls, carrier: MeshChoices, mesh: Degrees) -> Self:
        """Return the choices that a plan has, with the usual value of each that does not matter to its degrees."""
        return cls(
            **{name: getattr(carrier, name) if choice.is_open(mesh) else choice.usual for name, choice in OF_MESHES.items()}
        )

    @classmethod
    def allowed(cls, search: Search, mesh: Degrees) -> Iterator[Self]:
        """Yield the choices that a search has of meshes of these degrees, one of those that are the same."""
        values = (
            [value for value in choice.values if value in (getattr(search, name) or choice.unnamed_values)]
            if choice.is_open(mesh)
            else [choice.usual]
            for name, choice in OF_MESHES.items()
        )
        for chosen in product(*values):
            yield cls(**dict(zip(OF_MESHES, chosen, strict=True)))

    @property
    def others(self) -> Iterator[Self]:
        """The same with another value of one choice."""
        for name, choice in OF_MESHES.items():
            others: list[Any] = [value for value in choice.values if value is not getattr(self, name)]
            yield from (replace(self, **{name: value}) for value in others)

    @property
    def sort_key(self) -> tuple[int, ...]:
        """Canonical order among equals: usual values first."""
        return tuple(list(choice.values).index(value) for choice, value in self._chosen())

    @property
    def words(self) -> list[str]:
        """The values that are not the usual ones, in the name of a candidate."""
        return [choice.words[value] for choice, value in self._chosen() if value in choice.words]

    @property
    def mechanisms(self) -> list[str]:
        """What must be set up for the values, in words."""
        return [choice.mechanisms[value] for choice, value in self._chosen() if value in choice.mechanisms]

    def are_launched_by(self, launcher: Launcher, mesh: RankedDegrees) -> bool:
        """Return True if a launcher can start the values on a mesh."""
        return all(value in choice.launched_by(launcher, mesh) for choice, value in self._chosen())

    def _chosen(self) -> Iterator[tuple[MeshChoice, Any]]:
        return ((choice, getattr(self, name)) for name, choice in OF_MESHES.items())


USUAL_MESH = MeshChoices()
"""The choices of a mesh of which nothing is said."""


# Without slots, as above.
@dataclass(frozen=True)
class StageChoices:
    """The choices of a stage beside its degrees, mode of recomputation and place of state.

    recompute_layers   first layers of the stage, or of each of its chunks, that are recomputed whole, where recompute is full
                       and not all are
    recompute_modules  the modules that fine-grained recomputation runs again, in words joined by +; None for the usual ones
    """

    recompute_layers: int | None = None
    recompute_modules: str | None = None

    @property
    def recomputes_some(self) -> bool:
        """True if some layers of a stage are recomputed whole, and others not."""
        return self.recompute_layers is not None

    @property
    def lacks_layers(self) -> bool:
        """True if the number of recomputed layers follows from the borders, which are not yet known."""
        return self.recompute_layers == UNDECIDED

    @property
    def sort_key(self) -> tuple[int | str, ...]:
        """Canonical order among equals: what is usual first."""
        return (self.recompute_layers or 0, self.recompute_modules or "")

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules and operators that run again under fine-grained recomputation."""
        return USUAL_MODULES if self.recompute_modules is None else modules_of_words(self.recompute_modules)

    @property
    def mechanisms(self) -> list[str]:
        """What must be set up, in words, instead of the recomputation of all layers."""
        return [MECHANISM] if self.recomputes_some else []

    @classmethod
    def of_modules(cls, named: Iterable[str]) -> tuple[Recompute, StageChoices]:
        """Return the mode that runs modules again, and the choices that name them; none where no module is named. Raises
        InvalidInputError for other words."""
        words = "+".join(named)
        if not words:
            return Recompute.NONE, cls()
        modules = modules_of_words(words)
        if modules == SELECTIVE_MODULES:
            return Recompute.SELECTIVE, cls()
        return Recompute.FINE_GRAINED, cls(recompute_modules=words_of_modules(modules))

    def under(self, mode: Recompute) -> StageChoices:
        """Return the choices of a stage that runs a mode: modules are those of fine-grained recomputation."""
        return self if mode is Recompute.FINE_GRAINED else replace(self, recompute_modules=None)

    def with_layers(self, number: int | None = UNDECIDED) -> StageChoices:
        """Return the same choices with so many first layers recomputed, None for all of them or none."""
        return replace(self, recompute_layers=number)

    @property
    def of_layers(self) -> str:
        """Of how many layers, or of which modules, a stage recomputes, in words behind its mode; empty for the usual ones."""
        of = self.recompute_modules if self.recompute_layers is None else self.recompute_layers
        return "" if of is None else f" of {of}"

    def recompute_words(self, modes: Iterable[str], *, pp: int) -> str:
        """Return what ``pp`` stages recompute, in the name of a candidate that has these modes."""
        if self.recompute_layers is not None:
            return in_words(self.recompute_layers, pp=pp)
        return f"recompute {'/'.join(mode_in_words(mode, self.recompute_modules) for mode in modes)}"

    @staticmethod
    def are_open(search: Search) -> bool:
        """Return True if a search has stages that recompute some of their layers."""
        has_flag = search.space is Space.FREE or search.launcher in LAUNCHERS
        return has_flag and search.system is None

    @classmethod
    def of_words(cls, words: str) -> StageChoices | None:
        """Return the choices that `recompute_words` named; None where it named modes alone, or something else."""
        number = read_words(words)
        return None if number is None else cls(recompute_layers=number)

    def restricted(self, search: Search) -> Search:
        """Return the search that allows these choices alone, and all of its own of those that are not decided."""
        number, modules = self.recompute_layers, self.recompute_modules
        if modules is not None:
            search = replace(search, recompute_modules=(modules,))
        return search if number in (None, UNDECIDED) else replace(search, recompute_layers=(number,))


USUAL_STAGE = StageChoices()
"""The choices of a stage of which nothing is said."""

UNSAID: Mapping[str, Any] = MappingProxyType(
    {"cp_keys": CpKeys.RING, "expert_overlap": None, **{each.name: None for each in fields(StageChoices)}}
)
"""Choices that came after documents were stored, with the value that says nothing: it is left out, so that those are written
as they were."""
