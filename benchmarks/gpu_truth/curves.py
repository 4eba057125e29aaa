"""The device's kernels, measured by the code of ``meshwright calibrate profile`` and fitted by that of ``calibrate fit``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.gpu_truth.isolated import Tell
from meshwright.app.evidence.measuring.profiling import ProfileTask, ProfilingDevice, profile
from meshwright.costmodels.fitting.samples import SampleKind

REPEAT_S = 0.005

GROUPS: dict[str, tuple[SampleKind, ...]] = {
    "gemm": (SampleKind.GEMM,),
    "attention": (SampleKind.PREFILL_ATTENTION,),
    "attention-backward": (SampleKind.ATTENTION_BACKWARD,),
    "decode-attention": (SampleKind.DECODE_ATTENTION,),
    "stream": (SampleKind.STREAM, SampleKind.ACTIVATION, SampleKind.GATHER),
    "norm": (SampleKind.NORM,),
    "launch": (SampleKind.LAUNCH,),
}
"""Kinds that are measured in one process. Attention backward has its shapes in the same order as forward, so that both get to
nearly the same ones in their time: its curve is fitted to those that both have."""


def measure(
    tell: Tell,
    *,
    key: str,
    backend: str,
    kinds: Sequence[SampleKind],
    threads: int,
    most: int | None,
    within_s: float,
    file: Path,
) -> None:
    """Measure kinds of kernels into a file of measurements, as many shapes as the time allows."""
    from meshwright.app.evidence.measuring.sample_files import write_samples

    chosen = frozenset(kinds)
    task = ProfileTask(
        key, ProfilingDevice(backend), chosen, ranks=1, threads=threads, repeat_s=REPEAT_S, most=most, within_s=within_s
    )
    total = 0

    def seen(done: int, all_of_them: int, what: str) -> None:
        nonlocal total
        total = all_of_them

    samples = profile(task, seen)
    write_samples(file, samples)
    tell({"shapes": len(samples), "of": total})


def fit(tell: Tell, *, files: Sequence[Path], key: str, cores: int, folder: Path) -> None:
    """Join the measurements, and fit the calibration document to them; kinds with too few shapes are left out, and told."""
    from meshwright.app.evidence.measuring.fitted import fit_calibration
    from meshwright.app.evidence.measuring.sample_files import read_samples, write_samples
    from meshwright.costmodels.fitting.board import board_of
    from meshwright.costmodels.fitting.calibration import FEWEST_SHAPES
    from meshwright.costmodels.fitting.samples import joined

    samples = joined([read_samples(file) for file in files if file.exists()])
    write_samples(folder / "measurements.csv", samples)
    counted = {kind: int((samples.kind == kind).sum()) for kind in sorted(set(samples.kind.tolist()))}
    few = [kind for kind, rows in counted.items() if rows < FEWEST_SHAPES and kind != SampleKind.LAUNCH]
    tell({"rows": counted, "too_few": few})
    samples = samples.where(~np.isin(samples.kind, few))
    board = board_of(samples, key=key, node=None, cores=cores)
    fitted = fit_calibration(samples, board, folds=3, on_curve=lambda done, whole, name: None)
    document = fitted.calibration.document
    (folder / "calibration.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    tell({"rows": counted, "too_few": few, "calibration": fitted.calibration.name, "scores": document["scores"]})
