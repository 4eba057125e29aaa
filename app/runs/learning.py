"""From the stored runs of one hardware and framework to the calibration that is learned from them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import rfc8785

from meshwright.app.calibrations.run_keys import RunGroup
from meshwright.app.measuring.documents import read_calibration_document
from meshwright.app.runs.document import RunOutcome
from meshwright.app.runs.repository import StoredRun
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import RUN_CALIBRATION_SCHEMA, UNMEASURED_TIME
from meshwright.costmodels.fitting.run_times import learned_time
from meshwright.costmodels.version import COST_MODEL_VERSION

MOST_RUNS = 256
"""The latest runs that are learned from: software changes, and a cluster with it."""

KIND = "training"
"""Runs of serving plans are kept; nothing is learned from them yet."""


def learned_from(group: RunGroup, runs: Sequence[StoredRun]) -> Calibration | None:
    """Return the calibration of a group's runs; None where none says anything under this version of the cost model."""
    told = [(run, json.loads(run.run), json.loads(run.predicted)) for run in runs if run.kind == KIND]
    told = [each for each in told if each[2]["cost_model_version"] == COST_MODEL_VERSION]
    if not told:
        return None
    ratios: dict[str, list[float]] = defaultdict(list)
    for stored, run, predicted in told:
        if "step_time_s" in run:
            ratios[f"{stored.model} {predicted['step_time_s']:.9g}"].append(
                math.log(run["step_time_s"] / predicted["step_time_s"])
            )
    law = learned_time(UNMEASURED_TIME, ratios)
    digests = sorted(stored.digest for stored, _, _ in told)
    document = {
        "schema": RUN_CALIBRATION_SCHEMA,
        "key": group.key,
        "cluster": group.cluster,
        "profile": group.profile,
        "cost_model_version": COST_MODEL_VERSION,
        "time": {
            "scale": round(law.scale, 6),
            "shared_sigma": round(law.shared_sigma, 6),
            "own_sigma": law.own_sigma,
            "runs": law.runs,
        },
        "memory": [_memory_outcome(run, predicted) for _, run, predicted in told],
        "provenance": {f"measured runs on {group.cluster} by {group.profile}": f"{len(told)} runs"},
        "samples": {"digest": f"sha256:{hashlib.sha256(rfc8785.dumps(digests)).hexdigest()}", "rows": len(told)},
    }
    return read_calibration_document(document)


def _memory_outcome(run: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """A run's memory beside what the law said of it: its peak, or what it had."""
    device_bytes = float(predicted["device_memory_bytes"])
    outcome, told_bytes = "fitted", device_bytes
    if run["outcome"] == RunOutcome.OUT_OF_MEMORY:
        outcome = "ran-out"
    elif "peak_memory_bytes" in run:
        # Allocators do not count what a process takes beside its tensors.
        outcome, told_bytes = "peak", min(device_bytes, run["peak_memory_bytes"] + predicted["overhead_bytes"])
    return {"outcome": outcome, "median_bytes": float(predicted["peak_memory_bytes"]), "told_bytes": float(told_bytes)}
