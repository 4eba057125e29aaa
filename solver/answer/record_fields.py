"""Fields of records by their names: taken over by another record, and in plan documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def written_as(name: str) -> Mapping[str, str]:
    """Return the metadata of a part of a serving layout that stands in plan documents under another name than its own."""
    return {"written_as": name}


def named(record: Any, *, but: str = "") -> dict[str, Any]:
    """The fields of a record by their names."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != but}


def record_as(form: type[Record], given: Any, **others: Any) -> Record:
    """The record of a type from one that has fields of the same names, and from others."""
    wanted = {each.name for each in fields(form)}  # type: ignore[arg-type]
    return form(**{name: value for name, value in named(given).items() if name in wanted} | others)
