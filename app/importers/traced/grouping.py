"""Grouping: what a compiler runs in one kernel becomes one step.

A step between two products that only one other such step or the loss reads joins it, as torch.compile fuses producers into
their consumer. So the dozen calls of an RMS norm or a rotary embedding are one operator, and a residual sum that two steps
read is one of its own. A projection that is cut into parts along its columns writes the parts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from meshwright.app.importers.traced.atoms import axis_size, resolve
from meshwright.app.importers.traced.steps import Read, Step, StepKind, Stored

_FUSED = (StepKind.VECTOR, StepKind.PART, StepKind.LOSS)


def grouped(steps: Sequence[Step]) -> list[Step]:
    """Steps that matter, grouped, in an order of execution."""
    live = _live(_cut_projections(steps))
    readers = _readers(live)
    group_of: dict[int, int] = {}
    members: dict[int, list[Step]] = defaultdict(list)
    kinds: dict[int, StepKind] = {}
    for index in range(len(live) - 1, -1, -1):
        step = live[index]
        groups = {group_of[reader] for stored in step.outputs for reader in readers[stored]}
        joins = next(iter(groups)) if len(groups) == 1 and step.is_vector else None
        if joins is None or kinds[joins] not in _FUSED or _is_worth_keeping(step, members[joins]):
            joins = index
            kinds[index] = step.kind
        group_of[index] = joins
        members[joins].insert(0, step)
    return [_merged(members[index]) for index in sorted(members)]


def _is_worth_keeping(step: Step, readers: Sequence[Step]) -> bool:
    """Return True if the backward pass of its readers needs its output, and the output takes less memory than the tensors that
    it is made of."""
    kept = {stored for reader in readers for stored in reader.kept}
    (written,) = step.outputs[:1] or (None,)
    if written is None or written not in kept:
        return False
    return sum(read.stored.elements >= written.elements for read in step.reads) > 1


def _readers(steps: Sequence[Step]) -> defaultdict[Stored, list[int]]:
    """Indices of the steps that read each stored tensor."""
    readers: defaultdict[Stored, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        for read in step.reads:
            readers[read.stored].append(index)
    return readers


def _live(steps: Sequence[Step]) -> list[Step]:
    """Steps that the loss needs, and those with parameters; without a loss, all that lead to an unread output."""
    has_loss = any(step.kind is StepKind.LOSS for step in steps)
    needed: set[Stored] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        is_root = step.kind is StepKind.LOSS or bool(step.weights) or not has_loss
        if is_root or any(stored in needed for stored in step.outputs):
            kept.append(step)
            needed.update(read.stored for read in step.reads)
    return kept[::-1]


def _cut_projections(steps: Sequence[Step]) -> list[Step]:
    """Projections of which only parts along one axis are read, the parts being all of it, write these parts."""
    readers = _readers(steps)
    gone: set[Step] = set()
    for step in steps:
        if step.kind is not StepKind.MATMUL or len(step.outputs) != 1:
            continue
        parts = [steps[index] for index in readers[step.outputs[0]]]
        if parts and _covers(step, parts):
            step.outputs = [stored for part in sorted(parts, key=_start) for stored in part.outputs]
            gone.update(parts)
    return [step for step in steps if step not in gone]


def _start(part: Step) -> int:
    return part.part[1] if part.part is not None else 0


def _covers(step: Step, parts: Sequence[Step]) -> bool:
    cuts = [part.part for part in parts if part.part is not None]
    if len(cuts) < len(parts):
        return False
    axis = resolve(cuts[0][0])
    columns = {atom for weight in step.weights for own in weight.stored.axes for atom in resolve(own)}
    whole = sum(part.outputs[0].elements for part in parts) == step.outputs[0].elements
    distinct = max(Counter(start for _, start in cuts).values()) == 1
    return whole and distinct and axis_size(axis) > 0 and set(axis) <= columns and all(resolve(a) == axis for a, _ in cuts)


def _merged(members: Sequence[Step]) -> Step:
    """One step for the members of a group; its outputs are those of the last one."""
    last = members[-1]
    if len(members) == 1:
        return last
    inside = {stored: member for member in members for stored in member.outputs}
    reached: dict[Step, list[Stored]] = {}
    for member in members:
        sources: list[Stored] = []
        for read in member.reads:
            sources += reached[inside[read.stored]] if read.stored in inside else [read.stored]
        reached[member] = _unique(sources)
    outputs = set(last.outputs)
    kept: list[Stored] = []
    for member in members:
        for stored in member.kept:
            is_inside = stored in inside and stored not in outputs
            kept += reached[inside[stored]] if is_inside else [stored]
    return Step(
        kind=StepKind.LOSS if last.kind is StepKind.LOSS else StepKind.VECTOR,
        name=last.name,
        reads=_unique_reads(read for member in members for read in member.reads if read.stored not in inside),
        outputs=last.outputs,
        weights=_unique_reads(weight for member in members for weight in member.weights),
        flops=sum(member.flops for member in members),
        kept=_unique(kept),
        reduced=tuple(axis for member in members for axis in member.reduced),
        mixed=tuple(
            axis for member in members for axis in (*member.mixed, *((member.part[0],) if member.part is not None else ()))
        ),
    )


def _unique(stored: Sequence[Stored]) -> list[Stored]:
    return list(dict.fromkeys(stored))


def _unique_reads(reads: Iterable[Read]) -> list[Read]:
    found: dict[Stored, Read] = {}
    for read in reads:
        found.setdefault(read.stored, read)
    return list(found.values())
