"""The inputs that a plan depends on, as flat fields short enough to stand in a lock, and the differences of two such sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.app.requests.digests import calibration_files
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.costmodels.version import COST_MODEL_VERSION
from meshwright.solver.answer.plan import PLAN_SCHEMA
from meshwright.solver.version import SOLVER_VERSION

Value = int | float | str

VERSIONS = "version."
CALIBRATION = "calibration."
PROSE = "sources"
"""Where figures come from: enters the digest of a request, but no plan depends on it."""
NOT_APPLIED = frozenset({"search.time_limit_s", "search.memory_limit_bytes"})
"""A check runs every search to its end or its count of candidates."""
SHORT_HEX = 16
"""Hexadecimal digits of a hash in a lock: enough to tell two contents apart, short enough to read past."""


@dataclass(frozen=True, slots=True)
class InputChange:
    """An input that differs from the lock's; None where there was or is none."""

    __pydantic_config__ = STRICT_RECORD

    field: str
    was: Value | None
    now: Value | None

    def __str__(self) -> str:
        return f"{self.field} {shown(self.was)} -> {shown(self.now)}"

    @property
    def is_of_meshwright(self) -> bool:
        """True if Meshwright itself changed here: a version or a calibration that it ships."""
        return self.field.startswith((VERSIONS, CALIBRATION))


def plan_inputs(request: Mapping[str, Any]) -> dict[str, Value]:
    """Flat inputs of a resolved request document: model, cluster, workload, options, versions and calibrations.

    Blocks of a model stand as a hash each. What is not set, and where figures come from, is left out.
    """
    given = {name: value for name, value in request.items() if name not in ("schema", "model", "cluster")}
    found = {field: value for field, value in _flat("", given) if field not in NOT_APPLIED}
    found |= _model_inputs(request["model"]["graph"])
    found |= _cluster_inputs(request["cluster"])
    found |= {
        f"{VERSIONS}plan_schema": PLAN_SCHEMA,
        f"{VERSIONS}solver": SOLVER_VERSION,
        f"{VERSIONS}cost_model": COST_MODEL_VERSION,
    }
    return found


def changes(was: Mapping[str, Value], now: Mapping[str, Value]) -> tuple[InputChange, ...]:
    """Inputs that differ, by name."""
    return tuple(
        InputChange(field, was.get(field), now.get(field)) for field in sorted({*was, *now}) if was.get(field) != now.get(field)
    )


def shown(value: Value | None) -> str:
    """A value of an input as a person reads it."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.12g}"


def short_hash(content: object) -> str:
    """The start of the sha256 of a JSON value."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SHORT_HEX]


def _model_inputs(graph: Mapping[str, Any]) -> dict[str, Value]:
    layers: dict[str, Value] = {}
    for run in graph["chain"]:
        name = f"model.layers.{run['block']}"
        layers[name] = int(layers.get(name, 0)) + run["repeat"]
    return {
        "model.name": graph["name"],
        "model.order": short_hash([_order(graph["chain"]), graph["edges"]]),
        **layers,
        **{f"model.dims.{dim}": size for dim, size in graph["dims"].items()},
        **{f"model.blocks.{block['name']}": short_hash(block) for block in graph["blocks"]},
    }


def _order(chain: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return what the runs of a model say beyond the number of layers of each block."""
    blocks = [run["block"] for run in chain]
    return list(blocks) if len(set(blocks)) == len(blocks) else list(chain)


def _cluster_inputs(cluster: Mapping[str, Any]) -> dict[str, Value]:
    groups = cluster["groups"]
    found: dict[str, Value] = {"cluster.order": ", ".join(group["name"] for group in groups)}
    found |= _flat("cluster", {name: value for name, value in cluster.items() if name != "groups"})
    for group in groups:
        rest = {name: value for name, value in group.items() if name != "name"}
        found |= _flat(f"cluster.groups.{group['name']}", rest)
        found |= _calibration_inputs(group["node"]["device"]["calibration"])
    return found


def _calibration_inputs(key: str) -> dict[str, Value]:
    """Hashes of the calibration files of a device, those that they build on included."""
    found: dict[str, Value] = {}
    for kind in ("collectives", "kernels"):
        waiting = [key]
        while waiting:
            path = f"{kind}/{waiting.pop()}.json"
            if path in calibration_files() and f"{CALIBRATION}{path}" not in found:
                content = calibration_files()[path]
                found[f"{CALIBRATION}{path}"] = hashlib.sha256(content).hexdigest()[:SHORT_HEX]
                base = json.loads(content).get("base")
                waiting += [base["key"] if isinstance(base, dict) else base] if base else []
    return found


def _flat(path: str, value: object) -> Iterator[tuple[str, Value]]:
    """Fields under a path that are set, lists written in one line."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != PROSE:
                yield from _flat(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if value:
            yield path, ", ".join(str(item) for item in value)
    elif isinstance(value, int | float | str):
        yield path, value
