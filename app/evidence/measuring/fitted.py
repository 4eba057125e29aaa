"""From measured times to a calibration document (meshwright.calibration/1), with the scores of its curves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from meshwright.app.evidence.measuring.sample_files import samples_digest
from meshwright.app.requests.calibrations import read_calibration_document
from meshwright.costmodels.calibration.calibration import CALIBRATION_SCHEMA, Calibration
from meshwright.costmodels.fitting.board import Board
from meshwright.costmodels.fitting.calibration import OnCurve, fit_kernels
from meshwright.costmodels.fitting.check import Score
from meshwright.costmodels.fitting.collectives import fit_collectives
from meshwright.costmodels.fitting.samples import Samples


@dataclass(frozen=True, slots=True)
class FittedCalibration:
    """A calibration with the scores of its curves."""

    calibration: Calibration
    scores: tuple[Score, ...]


def fit_calibration(samples: Samples, board: Board, *, folds: int, on_curve: OnCurve) -> FittedCalibration:
    """Fit every curve that the samples of one device allow; raises SampleError when they do not suffice."""
    kernels, scores = fit_kernels(samples, board, folds=folds, on_curve=on_curve)
    on_curve(1, 1, "collectives")
    collectives, collective_score = fit_collectives(samples, board)
    if collective_score is not None:
        scores = (*scores, collective_score)
    digest = samples_digest(samples)
    provenance = {source: _counted(samples, source) for source in sorted(set(samples.source.tolist()))}
    document = {
        "schema": CALIBRATION_SCHEMA,
        "key": board.key,
        "board": {
            "source": board.source,
            "cores": board.cores,
            "peak_flops": {dtype.value: peak for dtype, peak in sorted(board.peak_flops.items())},
            "memory_bytes_per_s": board.memory_bytes_per_s,
            "link_bytes_per_s": board.link_bytes_per_s,
        },
        "kernels": kernels | {"provenance": provenance},
        "collectives": collectives | {"provenance": provenance},
        "scores": [_score_entry(score) for score in scores],
        "samples": {"digest": digest, "rows": len(samples), "kinds": _kinds(samples)},
        "software": sorted(set(samples.software.tolist()) - {""}),
    }
    return FittedCalibration(read_calibration_document(document), scores)


def _score_entry(score: Score) -> dict[str, Any]:
    entry = {**asdict(score), "median": round(score.median, 5), "p95": round(score.p95, 5)}
    entry["unseen"] = None if score.unseen is None else [round(value, 5) for value in score.unseen]
    return entry


def _kinds(samples: Samples) -> dict[str, int]:
    kinds = samples.kind.tolist()
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _counted(samples: Samples, source: str) -> str:
    chosen = samples.source == source
    software = ", ".join(sorted(set(samples.software[chosen].tolist()) - {""}))
    return f"{int(chosen.sum())} rows" + (f", {software}" if software else "")


# The targets of Meshwright for a calibration's held-out errors, printed beside them.


@dataclass(frozen=True, slots=True)
class Target:
    """Largest median and 95th percentile of the relative error on held-out rows."""

    median: float
    p95: float

    def holds(self, score: Score) -> bool:
        """Return True if the score, to the tenth of a per cent that is printed, is within the target."""
        return round(score.median, 3) <= self.median and round(score.p95, 3) <= self.p95


TARGETS = {
    "gemm/bf16": Target(0.03, 0.12),
    "prefill_attention/bf16": Target(0.07, 0.25),
    "decode_attention/bf16": Target(0.12, 0.45),
    "collectives": Target(0.05, 0.15),
}


def target_of(score: Score) -> Target | None:
    """The target of a score, by kind and format; None where none is set."""
    kind_and_format = "/".join(score.name.split("/")[:2])
    return TARGETS.get(kind_and_format)
