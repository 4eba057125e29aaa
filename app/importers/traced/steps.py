"""Steps: the calls of a trace that compute something, over atoms; views, casts and constants are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from meshwright.app.importers.traced.atoms import Atom, Axes, Axis, axis_size, resolve
from meshwright.costmodels.model.operators import AttentionMask


class Origin(Enum):
    """Where a tensor comes from."""

    CONSTANT = auto()
    """Nothing trained is in it: masks, positions, tables of rotary embeddings, labels. It costs nothing."""
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
    constants that a comparison or a triangle made, of which masks are made."""

    stored: Stored
    axes: Axes
    causal: bool = False

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
    part             PART: the axis that is cut, and where the part begins
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
    part: tuple[Axis, int] | None = None
    mask: AttentionMask | None = None

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
