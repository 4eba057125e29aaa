"""Predicted beside measured, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.stats import spearmanr

TARGET_SPEARMAN = 0.9
TARGET_MAPE = 0.2

INTRODUCTION = (
    "# Predicted against measured on a CPU",
    "",
    "`python benchmarks/cpu_truth --page docs/benchmarks-cpu.md` calibrates the machine with the code of",
    "`meshwright calibrate`, runs training steps of a small transformer (4 layers, hidden size 512, vocabulary",
    "4096, 8 sequences of 128 tokens, fp32, AdamW) under PyTorch, and predicts each plan. Nothing is fitted to the",
    "runs. Kernels are measured with as many ranks at once as a plan has: they hold what ranks take from one another",
    "where they share cores and memory. Gloo runs on the cores that compute: no communication is predicted to hide",
    "under computation. Kernels and runs are measured in alternation.",
    "",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan's predicted step time, and the median, least and greatest of its measured ones."""

    name: str
    ranks: int
    predicted_s: float
    measured_s: float
    least_s: float
    greatest_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def rank_correlation(outcomes: Sequence[Outcome]) -> float:
    """Spearman's correlation of predicted and measured times."""
    return float(spearmanr([one.predicted_s for one in outcomes], [one.measured_s for one in outcomes]).statistic)


def mean_error(outcomes: Sequence[Outcome]) -> float:
    """Mean absolute relative error."""
    return fmean(abs(one.error) for one in outcomes)


def page(outcomes: Sequence[Outcome], *, machine: str, loads: Sequence[float], rounds: int, steps: int, note: str) -> str:
    """The results as Markdown; the note says what else the machine did."""
    correlation, error = rank_correlation(outcomes), mean_error(outcomes)
    order = _verdict(correlation >= TARGET_SPEARMAN, f"{correlation:.2f}", f"at least {TARGET_SPEARMAN}")
    times = _verdict(error <= TARGET_MAPE, f"{error:.0%}", f"at most {TARGET_MAPE:.0%}")
    measured = f"Load average during the runs {min(loads):.1f} to {max(loads):.1f}; medians of {rounds} x {steps} steps."
    return "\n".join(
        [
            *INTRODUCTION,
            f"Machine: {machine}. {measured}{' ' if note else ''}{note}",
            "",
            f"- Spearman's rank correlation: {order}",
            f"- mean absolute error: {times}",
            "",
            "| plan | ranks | predicted | measured, median | measured, range | error |",
            "|---|---|---|---|---|---|",
            *(_row(one) for one in outcomes),
            "",
        ]
    )


def _row(one: Outcome) -> str:
    measured = f"{one.measured_s:.2f} s | {one.least_s:.2f} to {one.greatest_s:.2f} s"
    return f"| {one.name} | {one.ranks} | {one.predicted_s:.2f} s | {measured} | {one.error:+.0%} |"


def _verdict(holds: bool, found: str, target: str) -> str:
    return f"{found}, target {target}: {'holds' if holds else 'missed'}"
