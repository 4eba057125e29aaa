"""The records in which candidates, stages and plans carry declared choices. Code that only passes them on takes a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Self

from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.declared.mesh_choice import Degrees, MeshChoice
from meshwright.solver.problem.declared.rank_order import RANK_ORDER, RankOrder

OF_MESHES: Mapping[str, MeshChoice] = MappingProxyType({"rank_order": RANK_ORDER})
"""The choices of a mesh by their field in `MeshChoices`."""


# Without slots, so that the records of a plan can have its fields beside their own.
@dataclass(frozen=True)
class MeshChoices:
    """The choices of a mesh beside its degrees.

    rank_order   whether the ranks of a stage or of a replica lie together, where there are several of both
    """

    rank_order: RankOrder = RankOrder.PP_OUTERMOST

    @classmethod
    def of(cls, carrier: MeshChoices, *, dp: int, pp: int) -> Self:
        """Return the choices that a plan has, with the usual value of each that does not matter to its degrees."""
        return cls(
            **{name: getattr(carrier, name) if choice.is_open(dp, pp) else choice.usual for name, choice in OF_MESHES.items()}
        )

    @classmethod
    def allowed(cls, search: Any, *, dp: int, pp: int) -> Iterator[Self]:
        """Yield the choices that a search has of meshes of these degrees, one of those that are the same."""
        values = (
            [value for value in choice.values if value in (getattr(search, name) or (choice.usual,))]
            if choice.is_open(dp, pp)
            else [choice.usual]
            for name, choice in OF_MESHES.items()
        )
        for chosen in product(*values):
            yield cls(**dict(zip(OF_MESHES, chosen, strict=True)))

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

    def are_launched_by(self, launcher: Launcher, mesh: Degrees) -> bool:
        """Return True if a launcher can start the values on a mesh."""
        return all(value in choice.launched_by(launcher, mesh) for choice, value in self._chosen())

    def _chosen(self) -> Iterator[tuple[MeshChoice, Any]]:
        return ((choice, getattr(self, name)) for name, choice in OF_MESHES.items())


USUAL_MESH = MeshChoices()
"""The choices of a mesh of which nothing is said."""
