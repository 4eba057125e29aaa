"""The layout of a tensor on a mesh: which axes split which of its dims, and over which axes it still has to be summed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Placement of a tensor. A rank holds one block of it; axes named nowhere hold copies.

    splits   for each dim of the tensor, by position, the mesh axes that split it, from major to minor
    partial  axes over which the blocks are summands of the tensor, ascending
    """

    splits: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()

    def axes_of(self) -> tuple[int, ...]:
        """Every axis that splits some dim."""
        return tuple(axis for axes in self.splits for axis in axes)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The facts about a tensor that resharding depends on: sizes of the dims by position, and bytes of an element.

    ``routed`` marks that the last position is not a dim of the tensor but the expert that each row is routed to: splitting
    it puts every row where its expert is. It multiplies nothing; rows spread evenly over experts.
    """

    sizes: tuple[int, ...]
    element_bytes: float
    routed: bool = False

    @property
    def total_bytes(self) -> float:
        """Bytes of the whole tensor."""
        return math.prod(self.sizes[:-1] if self.routed else self.sizes) * self.element_bytes

    def local_bytes(self, layout: Layout, mesh: Sequence[int]) -> float:
        """Bytes of one rank's block; ``mesh`` has the sizes of the axes."""
        return self.total_bytes / math.prod(mesh[axis] for axis in layout.axes_of())

    def holds(self, layout: Layout, mesh: Sequence[int]) -> bool:
        """Return True if every split is into equal parts."""
        return all(
            size % math.prod(mesh[axis] for axis in axes) == 0 for size, axes in zip(self.sizes, layout.splits, strict=True)
        )


def layouts(shape: TensorShape, mesh: Sequence[int], positions: Sequence[int]) -> Iterator[Layout]:
    """Every layout that splits only dims at ``positions``, each split in every order of its axes, partial sums included."""
    whole, partial = -1, -2
    for uses in itertools.product((whole, partial, *positions), repeat=len(mesh)):
        if any(use != whole and mesh[axis] == 1 for axis, use in enumerate(uses)):
            continue
        by_position = [tuple(a for a, use in enumerate(uses) if use == p) for p in range(len(shape.sizes))]
        summed = tuple(a for a, use in enumerate(uses) if use == partial)
        for ordered in itertools.product(*(itertools.permutations(axes) for axes in by_position)):
            layout = Layout(ordered, summed)
            if shape.holds(layout, mesh):
                yield layout
