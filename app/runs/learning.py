"""From the stored runs of one hardware and framework to the calibration that is learned from them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import rfc8785

from meshwright.app.calibrations.run_keys import RunGroup
from meshwright.app.measuring.documents import read_calibration_document
from meshwright.app.runs.document import RunOutcome
from meshwright.app.runs.repository import StoredRun
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import LATENCY, RUN_CALIBRATION_SCHEMA, UNMEASURED_TIME
from meshwright.costmodels.fitting.latencies import LatencyPoint, learned_latency
from meshwright.costmodels.fitting.run_times import learned_time
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.latency_law import HOST_STEP_SIGMA_S, OUTSIDE_SIGMA_S, LatencyLaw, latency_law
from meshwright.costmodels.version import COST_MODEL_VERSION

MOST_RUNS = 256
"""The latest runs that are learned from: software changes, and a cluster with it."""

Told = tuple[StoredRun, dict[str, Any], dict[str, Any]]
"""A run's row, what was measured, and what had been predicted."""


def learned_from(group: RunGroup, runs: Sequence[StoredRun]) -> Calibration | None:
    """Return the calibration of a group's runs; None where none says anything under this version of the cost model."""
    read = [(run, json.loads(run.run), json.loads(run.predicted)) for run in runs]
    told = [each for each in read if each[2]["cost_model_version"] == COST_MODEL_VERSION]
    is_training = any(run.kind == "training" for run, _, _ in told)
    # No framework of training has the name of a serving engine.
    taught = _of_training(told) if is_training else _of_serving(group, told)
    if taught is None:
        return None
    digests = sorted(stored.digest for stored, _, _ in told)
    document = {
        "schema": RUN_CALIBRATION_SCHEMA,
        "key": group.key,
        "cluster": group.cluster,
        "profile": group.profile,
        "cost_model_version": COST_MODEL_VERSION,
        **taught,
        "provenance": {f"measured runs on {group.cluster} by {group.profile}": f"{len(told)} runs"},
        "samples": {"digest": f"sha256:{hashlib.sha256(rfc8785.dumps(digests)).hexdigest()}", "rows": len(told)},
    }
    return read_calibration_document(document)


def _of_training(told: Sequence[Told]) -> dict[str, Any]:
    """The law of step times, and the evidence on memory."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for stored, run, predicted in told:
        if "step_time_s" in run:
            ratios[f"{stored.model} {predicted['step_time_s']:.9g}"].append(
                math.log(run["step_time_s"] / predicted["step_time_s"])
            )
    law = learned_time(UNMEASURED_TIME, ratios)
    return {
        "time": {
            "scale": round(law.scale, 6),
            "shared_sigma": round(law.shared_sigma, 6),
            "own_sigma": round(law.own_sigma, 6),
            "runs": law.runs,
        },
        "memory": [_memory_outcome(run, predicted) for _, run, predicted in told],
    }


def _of_serving(group: RunGroup, told: Sequence[Told]) -> dict[str, Any] | None:
    """The laws of both latencies of the engine; None where no run has one."""
    prior = latency_law(ServingEngine(group.profile), pools=False, devices=())
    kinds = ((prior.ttft, "ttft", OUTSIDE_SIGMA_S), (prior.tpot, "tpot", HOST_STEP_SIGMA_S))
    points = {name: _points(law, f"{name}_p95_s", told) for law, name, _ in kinds}
    if not any(points.values()):
        return None
    laws = {name: learned_latency(law, points[name], outside_sigma_s=sigma_s) for law, name, sigma_s in kinds}
    documents: dict[str, Any] = {
        name: {figure: round(value, 6) for figure, value in asdict(law).items()} for name, law in laws.items()
    }
    return {LATENCY: {**documents, "runs": max(map(len, points.values()))}}


def _points(prior: LatencyLaw, figure: str, told: Sequence[Told]) -> list[LatencyPoint]:
    """Measured times beside the simulated ones, which are predicted medians without what is outside of a simulation."""
    found = []
    for stored, run, predicted in told:
        simulated_s = predicted.get(figure, 0.0) / prior.scale - prior.outside_s
        if figure in run and simulated_s > 0.0:
            layout = f"{stored.model} {predicted['ttft_p95_s']:.9g} {predicted['tpot_p95_s']:.9g}"
            found.append(LatencyPoint(layout, simulated_s, run[figure]))
    return found


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
