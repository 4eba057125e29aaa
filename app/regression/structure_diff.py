"""The differences in structure of two plans, in words."""

from __future__ import annotations

from dataclasses import fields
from itertools import zip_longest

from meshwright.app.regression.locked_plan import Structure


def structure_changes(was: Structure, now: Structure) -> tuple[str, ...]:
    """One line for each part that differs; of stages and shardings the first that does."""
    lines = list(layout_changes(was, now))
    for part in fields(Structure):
        before, after = getattr(was, part.name), getattr(now, part.name)
        if before != after and isinstance(before, tuple):
            lines.append(_list_change(part.name, before, after))
    return tuple(lines)


def layout_changes(was: Structure, now: Structure) -> tuple[str, ...]:
    """The lines of what the plan has one of: axes, schedule, micro-batch, serving layout."""
    lines = []
    for part in fields(Structure):
        before, after = getattr(was, part.name), getattr(now, part.name)
        if before != after and not isinstance(before, tuple):
            lines.append(f"{part.name.replace('_', ' ')} {before or 'none'} -> {after or 'none'}")
    return tuple(lines)


def _list_change(name: str, was: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(was) != len(now):
        return f"{len(was)} -> {len(now)} {name}"
    differ = [(i, a, b) for i, (a, b) in enumerate(zip_longest(was, now)) if a != b]
    first, before, after = differ[0]
    more = f" ({len(differ)} {name} differ)" if len(differ) > 1 else ""
    return f"{name.removesuffix('s')} {first}: {before} -> {after}{more}"
