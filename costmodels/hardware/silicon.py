"""Generations of accelerators: habits of their silicon that no device states and no calibration measures by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class SmallAllReduce:
    """An engine's kernels for small all-reduces: latencies, and the shares of the fabric's bandwidth that their reads reach."""

    one_shot_s: float
    one_shot_share: float
    two_shots_s: float
    two_shots_share: float


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of accelerators, one data file each.

    calibrations                what the calibration keys of its devices begin with
    asynchronous_matrix_units   True if kernels must feed the matrix units asynchronously to drive them fully
    small_all_reduce            kernels of each serving engine, by its name
    """

    name: str
    calibrations: tuple[str, ...]
    asynchronous_matrix_units: bool
    small_all_reduce: Mapping[str, SmallAllReduce]


@cache
def generations() -> tuple[Generation, ...]:
    """Return every generation of the catalogue, by name."""
    folder = files("meshwright.costmodels.hardware").joinpath("generations")
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    found = []
    for entry in entries:
        document = json.loads(entry.read_text(encoding="utf-8"))
        kernels = {engine: SmallAllReduce(**constants) for engine, constants in document["small_all_reduce"].items()}
        units = document["asynchronous_matrix_units"]
        found.append(Generation(document["name"], tuple(document["calibrations"]), units, kernels))
    return tuple(found)


@cache
def generation_of(calibration: str) -> Generation | None:
    """Return the generation of a calibration's device; None for one that the catalogue does not have."""
    return next((one for one in generations() if calibration.startswith(one.calibrations)), None)


def generation(name: str) -> Generation:
    """Return the generation of a name."""
    return next(one for one in generations() if one.name == name)
