"""Bounds of all members of a family at once: the free space has hundreds of shardings for each of hundreds of candidates.

What a layer takes depends on its own sharding, its recompute mode and the place of state alone, so figures are worked out for
each choice of each block, not for each combination, and combinations are looked at in compiled loops (`bundle_kernels`). Three
steps, each over fewer and tighter: places of state without what their communication takes; places with it, the shardings of the
block that most layers have, all other blocks at their best; whole shardings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.search.entries import Entry, Pending
from meshwright.solver.training.search.family_view import FamilyView
from meshwright.solver.training.search.shared_figures import SharedFigures
from meshwright.solver.training.space.candidates import Family
from meshwright.solver.training.space.state_places import StatePlace


@dataclass(frozen=True, eq=False)
class Bundle:
    """The members of a family with some places of state, and a bound of all."""

    family: Family
    places: tuple[StatePlace, ...]


@dataclass(eq=False)
class Entries:
    """Entries of a bundle that may be better than what is known, lowest bound first, those before ``done`` taken."""

    family: Family
    entries: list[Entry]
    done: int = 0


@dataclass(eq=False)
class Bundling:
    """Bounds members of families in bundles; what families share is worked out once."""

    costs: TrainingCosts

    def __post_init__(self) -> None:
        self._shared = SharedFigures(self.costs)

    @staticmethod
    def suits(family: Family) -> bool:
        """True of families of whole sequences."""
        return family.n_slices == 1 and not family.pipelinings[0].slices

    def by_place(self, family: Family, below: float) -> list[tuple[float, Bundle]]:
        """Bundles of a family's places of state with their bounds, those without one that may beat ``below`` together."""
        view = FamilyView(self._shared, family)
        if not view.choices.shardings:
            return []
        bounds = view.least_of_places(below)
        better = [place for place, bound in zip(family.places, bounds, strict=True) if bound < below]
        others = [p for p, bound in zip(family.places, bounds, strict=True) if below <= bound < np.inf]
        made = []
        for places in (better, others):
            if places:
                least = min(bound for place, bound in zip(family.places, bounds, strict=True) if place in places)
                made.append((least, Bundle(family, tuple(places))))
        return made

    def opened(self, bound: float, node: Bundle | Entries, below: float) -> Iterator[tuple[float, Entries | Pending]]:
        """Yield what takes the place of a bundle, or of entries, which waited under ``bound``."""
        match node:
            case Bundle():
                entries = self.entries(node, below)
                if entries:
                    yield max(bound, entries[0].bound), Entries(node.family, entries)
            case Entries():
                yield from self.members(node.family, node.entries[node.done], below)
                node.done += 1
                if node.done < len(node.entries):
                    yield node.entries[node.done].bound, node

    def entries(self, bundle: Bundle, below: float) -> list[Entry]:
        """Entries of a bundle that may beat ``below``, lowest bound first; of all others the first alone."""
        return FamilyView(self._shared, replace(bundle.family, places=bundle.places)).entries(below)

    def members(self, family: Family, entry: Entry, below: float) -> list[tuple[float, Pending]]:
        """The members of an entry that may fit, with their bounds."""
        return FamilyView(self._shared, family).members(entry, below)
