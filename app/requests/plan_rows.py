"""Plan and simulation documents as rows of tables: stages, and intervals of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def stage_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The stages of every part of a plan document. A part is named by its role, node group or number; the plan's own has
    none."""
    parts: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    parts += [(role, document[role]) for role in ("prefill", "switched") if document[role] is not None]
    parts += [(pool["group"], pool) for pool in (document["shares"] or {"pools": []})["pools"]]
    parts += [(f"kind {number}", kind) for number, kind in enumerate(document["kinds"])]
    several = len([1 for _, part in parts if part["stages"]]) > 1 or bool(document["kinds"])
    for part, holder in parts:
        for number, stage in enumerate(holder["stages"]):
            yield ({"part": part} if several else {}) | {"stage": number} | stage


def interval_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The intervals of a simulation document: the end of each, requests that wait and decode, and the share of time that is
    busy; ``kind`` names the kind of workers, where there are several."""
    kinds = document.get("kinds")
    if kinds is None:
        yield from _intervals(document["timeline"])
        return
    for kind in kinds:
        yield from ({"kind": kind["name"]} | row for row in _intervals(kind["timeline"]))


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row without nested mappings: {"a": {"b": 1}} has the column "a.b"."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            columns |= flat(value, f"{prefix}{name}.")
        else:
            columns[f"{prefix}{name}"] = value
    return columns


def _intervals(timeline: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if timeline is None:
        return []
    columns = zip(timeline["waiting"], timeline["decoding"], timeline["busy"], strict=True)
    return [
        {"end_s": (index + 1) * timeline["interval_s"], "waiting": waiting, "decoding": decoding, "busy": busy}
        for index, (waiting, decoding, busy) in enumerate(columns)
    ]
