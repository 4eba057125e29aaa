"""The differences between two calibrations: their samples, errors and constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import LATENCY, is_run_key
from meshwright.costmodels.calibration.networks import is_fabric_key

SMALLEST_CHANGE = 1e-3
"""Relative change of a constant that is worth a line: documents keep four or five digits."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs; None where one of the two has it not. ``ratio`` is new over old, of numbers above 0."""

    where: str
    old: float | str | None
    new: float | str | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class CalibrationDiff:
    """Everything that differs, by what it is of."""

    old: str
    new: str
    provenance: tuple[Change, ...]
    errors: tuple[Change, ...]
    constants: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """True if nothing differs."""
        return not (self.provenance or self.errors or self.constants)


def compare(old: Calibration, new: Calibration) -> CalibrationDiff:
    """Return the differences between two calibrations, in order of name."""
    return CalibrationDiff(
        old.name,
        new.name,
        provenance=tuple(_changes(_provenance(old.document), _provenance(new.document), smallest=0.0)),
        errors=tuple(_changes(_errors(old.document), _errors(new.document), smallest=0.0)),
        constants=tuple(_changes(_constants(old.document), _constants(new.document), smallest=SMALLEST_CHANGE)),
    )


Values = Mapping[str, float | str]


def _changes(old: Values, new: Values, *, smallest: float) -> Iterator[Change]:
    for where in sorted({*old, *new}):
        before, after = old.get(where), new.get(where)
        if before == after:
            continue
        ratio = None
        if isinstance(before, float) and isinstance(after, float) and before > 0 and after > 0:
            ratio = after / before
            if abs(ratio - 1) < smallest:
                continue
        yield Change(where, before, after, ratio)


def _provenance(document: Mapping[str, Any]) -> dict[str, float | str]:
    if is_run_key(document["key"]):
        return {"key": document["key"], "samples.digest": document["samples"]["digest"], **document["provenance"]}
    if is_fabric_key(document["key"]):
        rates = {f"line_rates.{name}": float(rate) for name, rate in document["line_rates"].items()}
        return {"key": document["key"], "samples.digest": document["samples"]["digest"], **rates, **document["provenance"]}
    samples, board = document["samples"], document["board"]
    flat: dict[str, float | str] = {"key": document["key"], "samples.digest": samples["digest"], "board": board["source"]}
    flat |= {f"samples.{kind}": float(rows) for kind, rows in samples["kinds"].items()}
    flat |= {f"peak_flops.{dtype}": float(peak) for dtype, peak in board["peak_flops"].items()}
    flat |= {name: float(board[name]) for name in ("cores", "memory_bytes_per_s", "link_bytes_per_s")}
    return flat | {"software": ", ".join(document["software"])}


def _errors(document: Mapping[str, Any]) -> dict[str, float | str]:
    return {f"{score['name']} {what}": float(score[what]) for score in document.get("scores", ()) for what in ("median", "p95")}


def _constants(document: Mapping[str, Any]) -> dict[str, float | str]:
    flat: dict[str, float | str] = {}
    if LATENCY in document:
        return dict(_flat(LATENCY, document[LATENCY]))
    if is_run_key(document["key"]):
        return {**dict(_flat("time", document["time"])), "memory.runs": float(len(document["memory"]))}
    if is_fabric_key(document["key"]):
        return {"share": float(document["share"]), **dict(_flat("curves", document["curves"]))}
    for part in ("kernels", "collectives"):
        body = {name: value for name, value in document[part].items() if name not in ("provenance", "error", "key", "schema")}
        flat |= dict(_flat(part, body))
    return flat


def _flat(path: str, value: Any) -> Iterator[tuple[str, float | str]]:
    """Constants under a path; errors are told elsewhere, the nodes of tables are no constants."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "error" and not name.startswith("log2_"):
                yield from _flat(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(f"{path}.{index}", inner)
    elif isinstance(value, bool | int | float):
        yield path, float(value)
    elif isinstance(value, str):
        yield path, value
