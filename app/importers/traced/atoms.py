"""Atoms: the named dims of a trace, found by following sizes through its operators.

A trace knows sizes, not names. Each axis of a tensor is a product of atoms, outer to inner. A view that splits an axis splits
its atom, everywhere at once; an operator that reads two tensors element by element makes their atoms one. What is left are
the dims of the model: a hidden size that a view cuts into heads becomes heads x head size in every tensor that has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.costmodels.errors import ModelError


class Atom:
    """A dim of a trace. ``parts`` is empty, or what it was found to consist of: one other atom, or a product of atoms."""

    __slots__ = ("number", "parts", "size")

    def __init__(self, size: int, number: int):
        self.size = size
        self.number = number
        self.parts: tuple[Atom, ...] = ()

    def resolved(self) -> tuple[Atom, ...]:
        """The atoms that it consists of by now."""
        if not self.parts:
            return (self,)
        found = tuple(atom for part in self.parts for atom in part.resolved())
        self.parts = found
        return found


Axis = tuple[Atom, ...]
Axes = tuple[Axis, ...]


class Atoms:
    """Makes atoms and finds out which are equal."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self, size: int) -> Axis:
        """An axis of a new atom; none of size 1, which nothing can split."""
        if size == 1:
            return ()
        self._count += 1
        return (Atom(size, self._count),)

    def unify(self, first: Axis, second: Axis) -> bool:
        """Make two axes of one size the same product of atoms; False where their factors don't nest (6 = 2 x 3 = 3 x 2)."""
        left, right = list(reversed(resolve(first))), list(reversed(resolve(second)))
        while left and right:
            a, b = left.pop(), right.pop()
            if a.parts or b.parts:  # An axis may have an atom twice.
                left += reversed(a.resolved())
                right += reversed(b.resolved())
                continue
            if a is b:
                continue
            if a.size == b.size:
                older, newer = sorted((a, b), key=lambda atom: atom.number)
                newer.parts = (older,)
            elif a.size % b.size == 0:
                left.append(self._split(a, b.size))
                right.append(b)
                left.append(a.parts[0])
            elif b.size % a.size == 0:
                right.append(self._split(b, a.size))
                left.append(a)
                right.append(b.parts[0])
            else:
                return False
        return not left and not right

    def regrouped(self, axes: Axes, sizes: Sequence[int]) -> tuple[Axes, frozenset[Atom]]:
        """The axes of a view with these sizes, and the atoms of ``axes`` that it mixes because sizes don't nest."""
        waiting = [atom for axis in reversed(axes) for atom in reversed(resolve(axis))]
        made: list[Axis] = []
        mixed: set[Atom] = set()
        index = 0
        while index < len(sizes):
            taken, left_over = self._take(waiting, sizes[index])
            if left_over is None:
                made.append(tuple(taken))
                index += 1
                continue
            # The axis ends inside an atom: find the next place where both shapes end an axis; what lies between is new.
            run, product = [sizes[index]], math.prod(atom.size for atom in taken) * left_over.size
            mixed |= {*taken, left_over}
            index += 1
            while math.prod(run) != product:
                if math.prod(run) < product and index < len(sizes):
                    run.append(sizes[index])
                    index += 1
                elif waiting:
                    atom = waiting.pop()
                    mixed.add(atom)
                    product *= atom.size
                else:
                    raise ModelError("a view changes the number of elements", given=tuple(sizes))
            made += [self.fresh(size) for size in run]
        return tuple(made), frozenset(mixed)

    def _take(self, waiting: list[Atom], size: int) -> tuple[list[Atom], Atom | None]:
        """Atoms whose product is ``size``, and the atom in which it ends if there are none; ``waiting`` is used up."""
        taken: list[Atom] = []
        while size > 1:
            if not waiting:
                raise ModelError("a view changes the number of elements", given=size)
            atom = waiting.pop()
            if size % atom.size == 0:
                taken.append(atom)
                size //= atom.size
            elif atom.size % size == 0:
                waiting.append(self._split(atom, size))
                taken.append(atom.parts[0])
                size = 1
            else:
                return taken, atom
        return taken, None

    def _split(self, atom: Atom, major: int) -> Atom:
        """Split an atom into ``major`` times the rest; returns the rest."""
        (first,), (rest,) = self.fresh(major), self.fresh(atom.size // major)
        atom.parts = (first, rest)
        return rest


def resolve(axis: Axis) -> Axis:
    """The atoms of an axis by now."""
    return tuple(found for atom in axis for found in atom.resolved())


def axis_size(axis: Axis) -> int:
    """Size of an axis."""
    return math.prod(atom.size for atom in axis)
