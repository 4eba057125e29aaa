"""Changing one figure deep inside a plan."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from meshwright.solver.answer.plan import Plan, plan_with

T = TypeVar("T")


def changed(record: T, path: str, value: object) -> T:
    """A copy with the field at a dotted path replaced; a number in the path is an index into a tuple."""
    head, _, rest = path.partition(".")
    if isinstance(record, tuple):
        index = int(head)
        new = changed(record[index], rest, value) if rest else value
        return (*record[:index], new, *record[index + 1 :])  # type: ignore[return-value]
    current = getattr(record, head)
    new = changed(current, rest, value) if rest else value
    if isinstance(record, Plan) and head == "layout":
        return plan_with(new, record)  # type: ignore[arg-type]
    return dataclasses.replace(record, **{head: new})  # type: ignore[type-var]


def at(record: object, path: str) -> object:
    """The value at a dotted path."""
    for part in path.split("."):
        record = record[int(part)] if isinstance(record, tuple) else getattr(record, part)
    return record
