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
    "where they share cores and memory. Where ranks outnumber cores, a kernel takes the processor time that it uses times",
    "the ranks of a core. Collectives are measured between matrix products, and hold the wait for the last rank and for a",
    "core. Gloo runs on the cores that compute: no communication is predicted to hide under computation. Kernels and runs",
    "are measured in alternation.",
    "",
)

ATTEMPTS = (
    "",
    "## Ranks that share cores",
    "",
    "Four ranks on two cores were 11 to 44% short (FSDP2 44%, TP 23%, TP x DDP 18%, DDP 11%). Processor time of the runs",
    "says why: a step takes within 10% of what all ranks compute and communicate over two cores. Little is lost by idling;",
    "collectives were too short.",
    "",
    "1. *Processor time of kernels, times ranks a core.* It is the same beside other work: at a load of 10 it predicts 0.85",
    "   s for DDP 4, which takes 0.80 to 0.97, where times by the wall are three times too long. With collectives timed one",
    "   after another TP 4 and TP 2 x DDP 2 stay 20 to 25% short, FSDP2 4 32%.",
    "2. *Collectives between products.* An all-reduce of 1 kB over four ranks takes 7 ms one after another and 9 to 11 ms",
    "   after 10 to 20 ms of computation, two thirds of it processor time: socket calls, and threads that wake one another",
    "   on busy cores. Together with 1 it is what is shown above.",
    "3. *New memory.* A page that is touched first takes 2 to 4 us here, and FSDP2 on four ranks touches 40,000 to 80,000 a",
    "   step: 0.1 s. Whether freed memory comes back from glibc or from the kernel differs between runs of the same loop",
    "   (23,000 pages, then none), so it is left out. FSDP2's gathers and copies are counted as in its source: weights of a",
    "   layer gathered for each pass, the root's once.",
    "",
    "4. *Freed memory kept by the process* (glibc told so by its environment, for kernels and runs alike). FSDP2 2 is then 2%",
    "   short, FSDP2 4 17%, where they are 30 and 24% short above; all together 0.79 and 12% in a run of two rounds beside a",
    "   light load, because plans of four ranks came out 4 to 24% short. Not taken over.",
    "",
    "What limits the order: measured orders repeat little themselves. A run of one round on a busy machine gave 0.88 and 11%,",
    "the one before it 0.59 and 13%; their measured orders agree with each other to 0.52. The two virtual cores change speed",
    "by a third within minutes, and eight of the thirteen plans lie within a quarter of each other.",
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
            *ATTEMPTS,
            "",
        ]
    )


def _row(one: Outcome) -> str:
    measured = f"{one.measured_s:.2f} s | {one.least_s:.2f} to {one.greatest_s:.2f} s"
    return f"| {one.name} | {one.ranks} | {one.predicted_s:.2f} s | {measured} | {one.error:+.0%} |"


def _verdict(holds: bool, found: str, target: str) -> str:
    return f"{found}, target {target}: {'holds' if holds else 'missed'}"
