"""Dims of models whose layers differ in heads or widths: what all layers have in common, and each layer's multiple of it.

A graph has one size for each dim. Splits go over ``heads``, ``kv_heads`` and ``ffn``, which are then the largest sizes that
divide those of every layer; a layer with more has one dim beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Multiples:
    """Sizes of a dim in layers that differ: ``common`` divides all of them."""

    dim: str
    common: int

    @classmethod
    def of(cls, dim: str, sizes: Iterable[int]) -> Multiples:
        """Return the multiples of the largest size that divides all of these."""
        return cls(dim, math.gcd(*sizes))

    def dims(self, size: int) -> tuple[str, ...]:
        """Return the dims of a layer with that size: the common one, and a second where it has a multiple of it."""
        return (self.dim,) if size == self.common else (self.dim, f"{self.dim}_times_{size // self.common}")

    def sizes(self, sizes: Iterable[int]) -> dict[str, int]:
        """Return the sizes of all these dims, of layers with these sizes."""
        times = {size // self.common for size in sizes}
        return {self.dim: self.common} | {f"{self.dim}_times_{each}": each for each in sorted(times) if each > 1}
