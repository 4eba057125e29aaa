"""Changing one figure deep inside a plan."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.plan import Plan

T = TypeVar("T")


def changed(record: T, path: str, value: object) -> T:
    """A copy with the field at a dotted path replaced: a field of a plan's document where the plan has none of that name.

    A number in the path is an index into a tuple.
    """
    head, _, rest = path.partition(".")
    if isinstance(record, tuple):
        index = int(head)
        new = changed(record[index], rest, value) if rest else value
        return (*record[:index], new, *record[index + 1 :])  # type: ignore[return-value]
    if isinstance(record, Plan) and not hasattr(record, head):
        return plan_of(changed(record_of(record), path, value))  # type: ignore[return-value]
    current = getattr(record, head)
    new = changed(current, rest, value) if rest else value
    return dataclasses.replace(record, **{head: new})  # type: ignore[type-var]


def at(record: object, path: str) -> object:
    """The value at a dotted path."""
    for part in path.split("."):
        if isinstance(record, Plan) and not hasattr(record, part):
            record = record_of(record)
        record = record[int(part)] if isinstance(record, tuple) else getattr(record, part)
    return record
