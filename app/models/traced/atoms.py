"""Atoms: the named dims of a trace, found by following sizes through its operators.

A trace knows sizes, not names. Each axis of a tensor is a product of atoms, outer to inner. A view that splits an axis splits
its atom, everywhere at once; an operator that reads two tensors element by element makes their atoms one. What is left are
the dims of the model: a hidden size that a view cuts into heads becomes heads x head size in every tensor that has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.operators import AttentionMask


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

    def led_by_one(self, axis: Axis) -> tuple[Axis, Axis]:
        """Put an atom of size 1 before an axis, everywhere at once: a dim that other models have with more; both axes."""
        whole, *others = resolve(axis)
        one, rest = Atom(1, self._count + 1), Atom(whole.size, self._count + 2)
        self._count += 2
        whole.parts = (one, rest)
        return (one,), (rest, *others)

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


# Steps: the calls of a trace that compute something, over atoms; views, casts and constants are gone.


class Origin(Enum):
    """Where a tensor comes from."""

    CONSTANT = auto()
    """No gradient flows through it: masks, positions, tables of rotary embeddings, labels, choices of experts.
    It costs nothing."""
    PARAMETER = auto()
    ACTIVATION = auto()


@dataclass(eq=False)
class Stored:
    """A tensor in memory: an input, a parameter, or what a step writes. ``axes`` are those with which it was written."""

    name: str
    axes: Axes
    origin: Origin

    @property
    def elements(self) -> int:
        """Number of elements in the trace."""
        size = 1
        for axis in self.axes:
            size *= axis_size(axis)
        return size


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor as an operator sees it: a stored one behind views, which may repeat it along new atoms. ``causal`` marks
    constants that a comparison or a triangle made, of which masks are made. ``picks`` is the axis whose places a router chose
    from: of its whole numbers, of all that follows from them, and of parameters that they pick. ``lookup`` is the step that
    looked up what it is made of element by element: a bias of scores."""

    stored: Stored
    axes: Axes
    causal: bool = False
    picks: Axis = ()
    lookup: Step | None = None

    @property
    def origin(self) -> Origin:
        """Where the stored tensor comes from."""
        return self.stored.origin


class StepKind(Enum):
    """The computation of a step."""

    MATMUL = auto()
    PRODUCT = auto()
    ATTENTION = auto()
    CONVOLUTION = auto()
    SCAN = auto()
    EMBEDDING = auto()
    LOSS = auto()
    VECTOR = auto()
    """Element by element, reductions included."""
    PART = auto()
    """A part of a tensor along one axis."""


@dataclass(eq=False)
class Read:
    """A stored tensor that a step reads. ``renamed`` maps axes to those that they are in this step: the keys of
    self-attention are the queries' tokens, but another dim of the scores."""

    stored: Stored
    renamed: tuple[tuple[Axis, Axis], ...] = ()


@dataclass(eq=False)
class Step:
    """One computation.

    reads, weights   activations and parameters
    flops            of the forward pass at the sizes of the trace
    kept             tensors that the backward pass needs again
    reduced          atoms over which rows are reduced while the output has them still (norms, softmax)
    mixed            atoms along which an output element depends on others, beside ``reduced``
    contracted       MATMUL: axes of the input that a parameter sums away
    routed           MATMUL: the axis of a parameter of which a router picks one place for each row
    apart            a kernel of its own, which what comes before may join, but which joins nothing
    part             PART: the axis that is cut, and where the part begins
    chunk            SCAN: tokens of a chunk
    """

    kind: StepKind
    name: str
    reads: list[Read]
    outputs: list[Stored]
    weights: list[Read] = field(default_factory=list)
    flops: float = 0.0
    kept: list[Stored] = field(default_factory=list)
    reduced: tuple[Axis, ...] = ()
    mixed: tuple[Axis, ...] = ()
    contracted: tuple[Axis, ...] = ()
    routed: tuple[Axis, ...] = ()
    apart: bool = False
    part: tuple[Axis, int] | None = None
    mask: AttentionMask | None = None
    chunk: int | None = None

    @property
    def is_vector(self) -> bool:
        """True if the step may run in one kernel with other steps between two products."""
        return self.kind in (StepKind.VECTOR, StepKind.PART)

    def reduced_atoms(self) -> set[Atom]:
        """Atoms of ``reduced``."""
        return atoms_of(self.reduced)

    def mixed_atoms(self) -> set[Atom]:
        """Atoms of ``mixed``."""
        return atoms_of(self.mixed)


def atoms_of(axes: Sequence[Axis]) -> set[Atom]:
    """All atoms of some axes."""
    return {atom for axis in axes for atom in resolve(axis)}
