"""The simulation of a plan as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.costmodels.queueing.statistics import CONFIDENCE
from meshwright.solver.serving.workers.simulation import PROBABILITIES, Distribution, ServingSimulation

SIMULATION_SCHEMA = "meshwright.simulation/1"


def simulation_document(simulated: ServingSimulation) -> dict[str, Any]:
    """The simulation as a JSON document; times in seconds."""
    document = {"schema": SIMULATION_SCHEMA, **_figures(simulated)}
    if simulated.kinds:
        document["kinds"] = [{"name": k.name, "share": k.share, **_figures(k.simulated)} for k in simulated.kinds]
    if simulated.rates:
        document["rates"] = [asdict(rate) | {"missed": list(rate.missed)} for rate in simulated.rates]
    return document


def _figures(simulated: ServingSimulation) -> dict[str, Any]:
    line = simulated.timeline
    over_time = None
    if line is not None:
        over_time = {
            "interval_s": line.end_s / len(line.busy),
            "waiting": line.waiting.tolist(),
            "decoding": line.decoding.tolist(),
            "busy": line.busy.tolist(),
        }
    return {
        "keeps_targets": not simulated.missed,
        "missed": list(simulated.missed),
        "requests": simulated.requests,
        "counted": simulated.counted,
        "requests_per_s": simulated.requests_per_s,
        "output_tokens_per_s": simulated.output_tokens_per_s,
        "confidence": CONFIDENCE,
        "ttft_s": _distribution(simulated.ttft),
        "tpot_s": None if simulated.tpot is None else _distribution(simulated.tpot),
        "end_to_end_s": _distribution(simulated.end_to_end),
        "busy": simulated.busy,
        "mean_batch": simulated.mean_batch,
        "peak_running": simulated.peak_running,
        "evictions": simulated.evictions,
        "timeline": over_time,
    }


def _distribution(found: Distribution) -> dict[str, Any]:
    names = [f"p{probability * 100:g}" for probability in PROBABILITIES]
    percentiles = {name: _finite(asdict(percentile)) for name, percentile in zip(names, found.percentiles, strict=True)}
    return {"mean": found.mean_s} | percentiles


def _finite(percentile: dict[str, float]) -> dict[str, float | None]:
    """An end that the run is too short to bound is null."""
    return {name: value if abs(value) < float("inf") else None for name, value in percentile.items()}
