"""Names of dims: atoms of a trace under names that say what they are, the same for equal ones of every layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.app.models.traced.atoms import Atom, Axis, Read, Step, StepKind, Stored, Value, atoms_of, axis_size, resolve
from meshwright.app.models.traced.reading import Trace
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    POSITIONS,
    SEQ,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_STATE,
    TOP_K,
    VOCAB,
)


@dataclass(frozen=True)
class Roles:
    """The roles that the inputs and attention give to atoms.

    batch, seq    the reserved dims; ``seq`` is the tokens of the first input, or those that most attention is over
    tokens        atoms of tokens of any attention, ``seq`` among them
    head_sizes    a head's own atoms
    heads         runs of atoms that are query heads, each with the shorter run that is its key/value heads
    scanned       names of heads, groups and states of scans
    """

    batch: Atom | None
    seq: Atom | None
    tokens: frozenset[Atom]
    head_sizes: frozenset[Atom]
    heads: tuple[tuple[tuple[Atom, ...], tuple[Atom, ...]], ...]
    scanned: Mapping[Atom, str]


def roles(trace: Trace) -> Roles:
    """Roles of atoms after a whole trace is read."""
    first = [value.axes[0] for value in trace.inputs if value.axes]
    batch = _single(first[0], "the batch") if first and first[0] else None
    tokens: Counter[Atom] = Counter()
    heads: dict[tuple[tuple[Atom, ...], tuple[Atom, ...]], None] = {}
    head_sizes: set[Atom] = set()
    for query, key, _ in trace.attended:
        if axis_size(query.axes[-2]) == axis_size(key.axes[-2]):
            # A decoder that writes as many tokens as its encoder reads, as templates have it.
            trace.atoms.unify(query.axes[-2], key.axes[-2])
    for query, key, value in trace.attended:
        for side in (query, key):
            for atom in resolve(side.axes[-2]):
                tokens[atom] += 1
        head_sizes |= {atom for side in (query, key, value) for atom in resolve(side.axes[-1])}
        heads.setdefault((resolve(query.axes[-3]), _own_heads(query, key)))
    second = _second_axis(trace)
    seq = second if second in tokens or not tokens else max(tokens, key=lambda atom: (tokens[atom], -atom.number))
    found = frozenset({*tokens, *((seq,) if seq else ())})
    return Roles(batch, seq, found, frozenset(head_sizes), tuple(heads), _of_scans(trace))


def _of_scans(trace: Trace) -> dict[Atom, str]:
    """Names of the dims of scans, as models have them that are described by their configuration."""
    named: dict[Atom, str] = {}
    for x, b in trace.scanned:
        own = ((x.axes[2], SSM_HEADS), (x.axes[3], SSM_HEAD_DIM), (b.axes[2], SSM_GROUPS), (b.axes[3], SSM_STATE))
        named |= {atom: name for axis, name in own for atom in resolve(axis)}
    return named


def _single(axis: Axis, what: str) -> Atom:
    atoms = resolve(axis)
    if len(atoms) > 1:
        raise ModelError(
            f"the trace cuts {what} into parts",
            given=" x ".join(str(atom.size) for atom in atoms),
            remedy="trace with another batch size, a prime number for instance",
        )
    return atoms[0]


def _own_heads(query: Value, key: Value) -> tuple[Atom, ...]:
    """Heads that keys have in memory, before they are repeated for the queries."""
    stored = {atom for axis in key.stored.axes for atom in resolve(axis)}
    return tuple(atom for atom in resolve(query.axes[-3]) if atom in stored)


def _second_axis(trace: Trace) -> Atom | None:
    """The second axis of the first input that has two and no more."""
    for value in trace.inputs:
        if len(value.axes) == 2 and len(resolve(value.axes[1])) == 1:
            return resolve(value.axes[1])[0]
    return None


class DimNames:
    """Dims of tensors by name. Atoms of one size share a name unless one operator has both."""

    def __init__(self, known: Roles, steps: Sequence[Step]):
        self.roles = known
        self.sizes: dict[str, int] = {}
        self._names: dict[Atom, str] = {}
        self._runs = [(run, own) for run, own in known.heads if len(run) > 1]
        self._entries = {atom for step in steps for atom in _entries(step)}
        self._hidden = {atom for step in steps if step.kind is StepKind.EMBEDDING for atom in _columns(step)}
        self._experts = {atom: name for step in steps if step.routed for atom, name in self._of_routed(step).items()}
        neighbours = _neighbours(steps)
        for atom in sorted(neighbours, key=lambda atom: atom.number):
            taken = {self._names[other] for other in neighbours[atom] if other in self._names}
            self._names[atom] = self._free(self._wanted(atom), atom.size, taken)
        self._run_names = {run: self._free(HEADS, math.prod(atom.size for atom in run), set()) for run, _ in self._runs}

    def of(self, read: Read | Stored) -> tuple[str, ...]:
        """Dims of a tensor: batch, tokens, the rest as written, a head's own last; renamed as its reader asks."""
        stored, renamed = (read.stored, read.renamed) if isinstance(read, Read) else (read, ())
        other = {
            old: new
            for before, after in renamed
            for old, new in zip(resolve(before), resolve(after), strict=True)
        }  # fmt: skip
        atoms = [atom for axis in stored.axes for atom in resolve(axis)]
        dims: list[tuple[int, int, str]] = []
        place = 0
        while place < len(atoms):
            run = next((run for run, _ in self._runs if tuple(atoms[place : place + len(run)]) == run), None)
            if run is not None:
                dims.append((2, place, self._run_names[run]))
                place += len(run)
                continue
            atom = atoms[place]
            dims.append((self._rank(atom), place, self._names[other.get(atom, atom)]))
            place += 1
        return tuple(name for *_, name in sorted(dims))

    def names(self, atoms: Iterable[Atom]) -> set[str]:
        """Names of some atoms."""
        return {self._names[atom] for atom in atoms if atom in self._names}

    def followers(self) -> dict[str, str]:
        """Key/value heads by the query heads they go with, where there are fewer of them."""
        return {self._names[own[0]]: self._run_names[run] for run, own in self._runs if len(own) == 1 and own[0] in self._names}

    def another(self, dim: str, taken: set[str]) -> str:
        """Another dim of the same size."""
        return self._free(f"{dim}_out", self.traced_sizes[dim], taken)

    def table(self, dim: str) -> str:
        """The dim of a parameter that has an entry for each index of a reserved dim."""
        return self._free(POSITIONS, self.traced_sizes[dim], set())

    @property
    def traced_sizes(self) -> dict[str, int]:
        """Sizes of all dims, of batch and tokens as in the trace."""
        known = {BATCH: self.roles.batch, SEQ: self.roles.seq}
        return {**self.sizes, **{dim: 1 if atom is None else atom.size for dim, atom in known.items()}}

    def _of_routed(self, step: Step) -> dict[Atom, str]:
        """Names of atoms of a product by experts: beside the tokens its rows have the copies of each."""
        read, summed = atoms_of(step.reads[0].stored.axes), atoms_of(step.contracted)
        columns = {atom for stored in step.outputs for atom in atoms_of(stored.axes)} - read
        copies = read - summed - self.roles.tokens - {self.roles.batch}
        named = ((EXPERT_FFN, summed | columns), (TOP_K, copies), (EXPERTS, atoms_of(step.routed)))
        return {atom: name for name, atoms in named for atom in atoms}

    def _rank(self, atom: Atom) -> int:
        if atom is self.roles.batch:
            return 0
        if atom in self.roles.tokens:
            return 1
        return 3 if atom in self.roles.head_sizes else 2

    def _wanted(self, atom: Atom) -> str:
        if atom is self.roles.batch:
            return BATCH
        if atom is self.roles.seq:
            return SEQ
        if atom in self.roles.head_sizes:
            return HEAD_DIM
        if atom in self.roles.scanned:
            return self.roles.scanned[atom]
        if any(run == (atom,) for run, _ in self.roles.heads):
            return HEADS
        if any(own == (atom,) for _, own in self.roles.heads):
            return KV_HEADS
        if atom in self._hidden:
            return HIDDEN
        if atom in self._experts:
            return self._experts[atom]
        return VOCAB if atom in self._entries else f"d{atom.size}"

    def _free(self, wanted: str, size: int, taken: set[str]) -> str:
        """The wanted name, numbered where an operator has it already or it is of another size."""
        name, count = wanted, 1
        while name in taken or (name not in (BATCH, SEQ) and self.sizes.get(name, size) != size):
            count += 1
            name = f"{wanted}_{count}"
        if name not in (BATCH, SEQ):
            self.sizes[name] = size
        return name


def _entries(step: Step) -> set[Atom]:
    """Atoms of the entries of a table, or of the classes that a loss is over."""
    if step.kind is StepKind.EMBEDDING:
        return atoms_of(step.weights[0].stored.axes) - _columns(step)
    if step.kind is StepKind.LOSS:
        return atoms_of(step.reads[0].stored.axes) - {atom for stored in step.outputs for atom in atoms_of(stored.axes)}
    return set()


def _columns(step: Step) -> set[Atom]:
    """Atoms of what a lookup gives for an entry."""
    written = {atom for stored in step.outputs for atom in atoms_of(stored.axes)}
    return atoms_of(step.weights[0].stored.axes) & written


def _neighbours(steps: Sequence[Step]) -> dict[Atom, set[Atom]]:
    """For each atom those that an operator has beside it."""
    found: dict[Atom, set[Atom]] = {}
    for step in steps:
        tensors = [read.stored for read in (*step.reads, *step.weights)] + step.outputs
        here = {atom for stored in tensors for axis in stored.axes for atom in resolve(axis)}
        here |= {atom for read in step.reads for _, after in read.renamed for atom in resolve(after)}
        for atom in here:
            found.setdefault(atom, set()).update(here - {atom})
    return found
