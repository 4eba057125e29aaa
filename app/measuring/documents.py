"""The calibration document (meshwright.calibration/1): made from fits, named by its content, read back and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import rfc8785

from meshwright.app.measuring.sample_files import samples_digest
from meshwright.costmodels.calibration.calibration import CALIBRATION_SCHEMA, SEPARATOR, Calibration
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.fitting.board import Board
from meshwright.costmodels.fitting.calibration import OnCurve, fit_kernels
from meshwright.costmodels.fitting.check import check_calibration
from meshwright.costmodels.fitting.collectives import fit_collectives
from meshwright.costmodels.fitting.cross_validation import Score
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


def read_calibration_document(document: object) -> Calibration:
    """The calibration of a parsed document, checked; raises ClusterError."""
    if not isinstance(document, Mapping):
        raise ClusterError("a calibration is a JSON object", given=type(document).__name__)
    check_calibration(document)
    return Calibration(calibration_name(document), document)


def calibration_name(document: Mapping[str, Any]) -> str:
    """``<key>@sha256:<hex>`` over the document's canonical form (RFC 8785)."""
    try:
        canonical = rfc8785.dumps(dict(document))
    except rfc8785.CanonicalizationError as error:
        raise ClusterError(f"the calibration has no canonical form: {error}") from None
    return f"{document['key']}{SEPARATOR}sha256:{hashlib.sha256(canonical).hexdigest()}"


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
