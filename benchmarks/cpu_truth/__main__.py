"""Close the loop on this machine's CPU: calibrate it, run plans of a small transformer under PyTorch, predict each, compare.

    python benchmarks/cpu_truth [--rounds 3] [--page docs/benchmarks-cpu.md]

Needs PyTorch (tests/requirements-truth.txt). Kernels and runs are measured in alternation, so that a machine that is busy for
a while is busy for both. Prints a Markdown page; --page also writes it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from plans import PLANS
from prediction import Predictor
from report import Outcome, page
from training import measure

from meshwright.app.evidence.measuring.profiling import ProfileTask, ProfilingDevice, profile
from meshwright.app.evidence.measuring.sample_files import read_samples, write_samples
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleKind, Samples

STEPS = 5
REPEAT_S = 0.01
CORES = len(os.sched_getaffinity(0))
RANKS = sorted({plan.ranks for plan in PLANS})

KERNELS = frozenset(SampleKind) - frozenset(COLLECTIVE_KINDS) - {SampleKind.DECODE_ATTENTION}
COLLECTIVES = frozenset({SampleKind.ALL_REDUCE, SampleKind.ALL_GATHER, SampleKind.REDUCE_SCATTER, SampleKind.SEND_RECV})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured, in alternation")
    parser.add_argument("--page", type=Path, help="write the page to a file as well")
    parser.add_argument("--note", default="", help="what else the machine did, for the page")
    arguments = parser.parse_args()
    loads = [os.getloadavg()[0]]
    kernels: dict[int, list[Samples]] = {ranks: [] for ranks in RANKS}
    seconds: dict[str, list[float]] = {plan.name: [] for plan in PLANS}
    for number in range(1, arguments.rounds + 1):
        for ranks in RANKS:
            print(f"round {number} of {arguments.rounds}: {ranks} ranks", file=sys.stderr, flush=True)
            kernels[ranks].append(_profiled(ranks))
            for name, times in measure([plan for plan in PLANS if plan.ranks == ranks], steps=STEPS).items():
                seconds[name] += times
            loads.append(os.getloadavg()[0])
    outcomes = _outcomes(kernels, seconds)
    text = page(outcomes, machine=_machine(), loads=loads, rounds=arguments.rounds, steps=STEPS, note=arguments.note)
    print(text)
    if arguments.page is not None:
        arguments.page.write_text(text, encoding="utf-8")


def _profiled(ranks: int) -> Samples:
    """Kernels and collectives while so many ranks measure at once, sharing cores and memory as the runs do."""
    task = ProfileTask(f"cpu-{ranks}", ProfilingDevice.CPU, KERNELS | COLLECTIVES, ranks=ranks, threads=1, repeat_s=REPEAT_S)
    return profile(task, lambda done, total, what: None)


def _outcomes(kernels: dict[int, list[Samples]], seconds: dict[str, list[float]]) -> list[Outcome]:
    outcomes = []
    for ranks in RANKS:
        samples = _median_of(kernels[ranks])
        predictor = Predictor(samples, ranks=ranks)
        for plan in PLANS:
            if plan.ranks == ranks:
                times = seconds[plan.name]
                outcomes.append(Outcome(plan.name, ranks, predictor.step_time_s(plan), median(times), min(times), max(times)))
    return outcomes


def _median_of(rounds: list[Samples]) -> Samples:
    """One sample a shape: the median of the rounds, which measured the same shapes in the same order."""
    times = np.median([samples.time_s for samples in rounds], axis=0)
    first = rounds[0]
    values = {name: getattr(first, name) for name in Samples.__dataclass_fields__}
    with tempfile.TemporaryDirectory() as folder:
        # Through a file, as a person would: what is fitted is what a file can hold.
        path = Path(folder, "cpu.csv")
        write_samples(path, Samples(**{**values, "time_s": times}))
        return read_samples(path)


def _machine() -> str:
    import torch

    return f"{platform.machine()}, {CORES} cores, PyTorch {torch.__version__}, one thread a rank, Gloo"


if __name__ == "__main__":
    main()
