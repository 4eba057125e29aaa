"""The differences in structure of two plans, in words."""

from __future__ import annotations

from collections.abc import Mapping
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
        if part.name == "choices":
            lines += _choice_changes(before or {}, after or {})
        elif before != after and not isinstance(before, tuple):
            lines.append(f"{part.name.replace('_', ' ')} {before or 'none'} -> {after or 'none'}")
    return tuple(lines)


def _choice_changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each choice that differs; one that is left out is as usual."""
    words = dict.fromkeys((*was, *now))
    before_after = [(word, was.get(word, "usual"), now.get(word, "usual")) for word in words]
    return [f"{word.replace('_', ' ')} {before} -> {after}" for word, before, after in before_after if before != after]


def _list_change(name: str, was: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(was) != len(now):
        return f"{len(was)} -> {len(now)} {name}"
    differ = [(i, a, b) for i, (a, b) in enumerate(zip_longest(was, now)) if a != b]
    first, before, after = differ[0]
    more = f" ({len(differ)} {name} differ)" if len(differ) > 1 else ""
    return f"{name.removesuffix('s')} {first}: {before} -> {after}{more}"
