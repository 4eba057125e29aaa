"""All laws, in the order of docs/design.md."""

from __future__ import annotations

from tests.laws import (
    accuracy,
    better,
    every_value,
    exported,
    growth,
    learning,
    names,
    other_kind,
    parts,
    predicted,
    rows,
    wider,
    written_out,
)

LAWS = {
    "growth": growth.LAW,
    "wider": wider.LAW,
    "learning": learning.LAW,
    "every_value": every_value.LAW,
    "other_kind": other_kind.LAW,
    "written_out": written_out.LAW,
    "names": names.LAW,
    "parts": parts.LAW,
    "predicted": predicted.LAW,
    "rows": rows.LAW,
    "exported": exported.LAW,
    "better": better.LAW,
    "accuracy": accuracy.LAW,
}
