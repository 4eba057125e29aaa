"""Measure one device, predict steps and a serving loop on it, run them, and lay both side by side.

    python -m benchmarks.gpu_truth -o truth               # a machine with an NVIDIA GPU, under 8 minutes
    python -m benchmarks.gpu_truth -o truth --device cpu --quick

Needs PyTorch and this repository. The folder gets measurements.csv and calibration.json, comparison.json and comparison.md,
the requests that were asked, and each step's results and log. Results are written after every step and stay, whatever happens
later. docs/calibration.md says how they are used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_truth import cases, curves, prediction, report, serving, training
from benchmarks.gpu_truth.isolated import Ended, Runner, Status, Step
from benchmarks.gpu_truth.machine import CPU, CPU_THREADS, CUDA, Machine

WITHIN_S = 450.0
"""Half a minute below 8 minutes."""
GROUP_S = {"gemm": 70.0, "attention": 20.0, "attention-backward": 20.0, "decode-attention": 15.0, "stream": 15.0}
OTHER_GROUP_S = 8.0
"""Seconds in which shapes of a group of kernels are begun."""
STARTING_S = 20.0
"""Seconds more that such a step may take: to start, and to end the shape that is under way."""
FIT_S, PREDICT_S, RUN_S, COMPILED_RUN_S = 60.0, 90.0, 30.0, 75.0
"""Limits of the other steps. Of a first prediction the larger part is compiling the solver, once for an installation."""
QUICK_SHAPES = 13
"""Shapes of each kind of kernel in a trial: the fewest that a curve is fitted to, and a few more."""


def main(arguments: list[str] | None = None) -> int:
    """Run all steps; return 0 if every one was done."""
    options = _options().parse_args(arguments)
    folder: Path = options.output
    for each in (folder, folder / "requests", folder / "steps"):
        each.mkdir(parents=True, exist_ok=True)
    session = Session(options, Runner(folder / "steps", ends_s=time.monotonic() + options.within))
    for step in session.steps():
        session.run(step)
    return 0 if all(each.status is Status.DONE for each in session.ended.values()) else 1


class Session:
    """One run of the benchmark: its steps in order, and what has come of them."""

    def __init__(self, options: argparse.Namespace, runner: Runner):
        self._options, self._runner, self._folder = options, runner, options.output
        self.ended: dict[str, Ended] = {}
        self._is_cpu = options.device == CPU
        self._cases = cases.TINY if options.quick else cases.SMALL if self._is_cpu else cases.FULL
        self._measured_s = 0.0 if options.quick else 3.0

    def run(self, step: Step) -> None:
        """Run a step, say how it ended, and write all results so far."""
        print(f"{step.name} ... ", end="", file=sys.stderr, flush=True)
        ended = self._runner.run(step)
        self.ended[step.name] = ended
        said = "" if ended.error is None else f": {ended.error}"
        print(f"{ended.status} in {ended.seconds:.1f} s{said} ({self._runner.left_s:.0f} s left)", file=sys.stderr, flush=True)
        document = report.comparison(
            self._looked.get("machine", {}),
            self._cases,
            self.ended,
            known=self._looked.get("known"),
            is_tiny=self._options.quick,
        )
        (self._folder / "comparison.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (self._folder / "comparison.md").write_text(report.page(document), encoding="utf-8")

    def steps(self) -> Iterator[Step]:
        """The steps in order; the first says what the others are given. Nothing runs before it was predicted."""
        quick, machine = self._options.quick, Machine(self._options.device)
        named = {"name": self._options.named}
        looking = Step("look", prediction.look, {"machine": machine, **named}, STARTING_S + PREDICT_S)
        yield looking
        if not self._looked:
            self._runner.without_forks()
            yield looking
        looked = self._looked
        if not looked:
            return
        files = {group: self._folder / "steps" / f"{group}.csv" for group in curves.GROUPS}
        key = looked["key"]
        for group, kinds in curves.GROUPS.items():
            if group == "launch" and self._is_cpu:
                # A CPU's kernels run where they are launched: their own times hold the launch.
                continue
            within_s = GROUP_S.get(group, OTHER_GROUP_S)
            given = {"key": key, "backend": self._options.device, "kinds": kinds, "threads": CPU_THREADS, "file": files[group]}
            given |= {"most": QUICK_SHAPES * len(kinds) if quick else None, "within_s": within_s}
            yield Step(group, curves.measure, given, within_s + STARTING_S)
        fitted = {"files": list(files.values()), "key": key, "cores": looked["machine"]["cores"], "folder": self._folder}
        yield Step("fit", curves.fit, fitted, FIT_S)
        asked = {"machine": looked["machine"], "key": key, "known": looked["known"], "cases": self._cases}
        asked |= {"calibration": self._folder / "calibration.json", "folder": self._folder / "requests"}
        yield Step("predict", prediction.run, asked, PREDICT_S)
        for mode in prediction.PROFILES:
            is_compiled, limit_s = mode == "compiled", COMPILED_RUN_S if mode == "compiled" else RUN_S
            if is_compiled and self._options.no_compile:
                continue
            shared: dict[str, Any] = {"machine": machine, "compiled": is_compiled, "measured_s": self._measured_s}
            for case in self._cases.training:
                yield Step(report.training_step(case.name, mode), training.run, shared | {"case": case}, limit_s)
            served = shared | {"decoder": self._cases.served, "points": self._cases.serving}
            yield Step(report.serving_step(mode), serving.run, served, limit_s)

    @property
    def _looked(self) -> dict[str, Any]:
        return self.ended["look"].results if "look" in self.ended else {}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where everything is written")
    parser.add_argument("--device", choices=(CUDA, CPU), default=CUDA, help="what is measured (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a trial of the benchmark itself")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled runs out")
    parser.add_argument("--named", metavar="NAME", help="the catalogue's device, where the driver's name is not known")
    seconds = partial(parser.add_argument, type=float, metavar="SECONDS")
    seconds("--within", default=WITHIN_S, help="time for all of it (default: %(default).0f); what is left then is not run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
