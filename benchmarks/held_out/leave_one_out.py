"""Scores of sources that were left out of every fit: of constants of devices and links, of laws of memory, and of bands."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.held_out.memory_laws import laws_without, told_memory
from benchmarks.held_out.step_errors import HeldOutStep, fit_step_errors, step_errors_without
from meshwright.app.evidence.training.fitting import fit_constants, fitted_runs, refit
from meshwright.app.evidence.training.prediction import Constants
from meshwright.app.evidence.training.report import Report, report_of
from meshwright.app.evidence.training.rows import Quality, ValidationRun
from meshwright.app.evidence.training.scores import ScoredRun, score_run
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.training.report.bands import ASSUMED_FRAMEWORK, KNOWN_FRAMEWORK, StepErrorModel

CHUNK = 50
"""Rows that a process is given at a time: rows of one source are next to one another, and share what they look up."""

RUNS_OF_SOURCE = 60
"""Runs of a source that the fits look at: there are as many fits as sources."""


@dataclass(frozen=True, slots=True)
class Banded:
    """The error model of left-out steps, and by source how many of them there are and how many are inside the band that was
    fitted to the steps of all other sources."""

    model: StepErrorModel
    covered: dict[str, tuple[int, int]]

    @property
    def coverage(self) -> float:
        """Share of all steps inside their band."""
        return sum(inside for _, inside in self.covered.values()) / sum(rows for rows, _ in self.covered.values())

    def least(self, of_at_least: int) -> tuple[str, float]:
        """The source of which the least share is inside, among those of at least so many steps, and that share."""
        shares = {source: inside / rows for source, (rows, inside) in self.covered.items() if rows >= of_at_least}
        source = min(shares, key=lambda name: shares[name])
        return source, shares[source]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Scores of every source by fits to all others.

    constants   of the fit to all sources
    report      scores of left-out sources
    known       bands of steps whose framework the mapping of their table states
    assumed     bands of the same steps, predicted as if nothing were known of their source
    """

    constants: Constants
    report: Report
    known: Banded
    assumed: Banded


def leave_one_source_out(rows: Sequence[ValidationRun], unmapped: Sequence[ValidationRun], *, pool: Executor) -> LeftOut:
    """Fit constants, laws of memory and bands to all sources but one, and score that one, for each.

    All work is done in processes of ``pool``, which are quicker with one thread each (`processes_of_one_thread`). The rows have
    at least three timed sources; ``unmapped`` are the same rows, read without a mapping.
    """
    laws_found = pool.submit(_laws, rows)
    unfitted = pool.map(score_run, rows, [Constants()] * len(rows), chunksize=CHUNK)
    timed = [scored.measured for scored in unfitted if scored.time_ratio is not None]
    constants, of_others = pool.submit(constants_without, timed).result()
    by_rates = [of_others.get(row.run.source, constants) for row in unmapped]
    bare = pool.map(score_run, unmapped, by_rates, chunksize=CHUNK)
    laws = laws_found.result()
    by_laws = [replace(of_others.get(row.run.source, constants), memory=laws.get(row.run.source)) for row in rows]
    scored = list(pool.map(score_run, rows, by_laws, chunksize=CHUNK))
    known = pool.submit(banded, held_out_steps(scored), KNOWN_FRAMEWORK.basis)
    assumed = pool.submit(banded, held_out_steps(list(bare)), ASSUMED_FRAMEWORK.basis)
    return LeftOut(constants, report_of(scored, file="all tables"), known.result(), assumed.result())


def processes_of_one_thread(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes do linear algebra in one thread: the fits' matrices are small, and threads that wait for one
    another took seven times as long on a busy machine."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def constants_without(timed: Sequence[ValidationRun]) -> tuple[Constants, dict[str, Constants]]:
    """Return the constants of all timed runs, and for each source those that have not seen it. Runs whose plan or precision is
    coarsely known (quality C) are scored, and nothing is fitted to them."""
    runs = fitted_runs([run for run in timed if run.run.quality is not Quality.C], of_source=RUNS_OF_SOURCE)
    constants, parts = fit_constants(runs)
    sources = np.array([row.run.source for row in runs])
    return constants, {source: refit(parts, runs, sources != source) for source in dict.fromkeys(sources.tolist())}


def _laws(rows: Sequence[ValidationRun]) -> dict[str, MemoryLaw]:
    return laws_without(told_memory(rows))


def held_out_steps(scored: Sequence[ScoredRun]) -> list[HeldOutStep]:
    """The timed steps among scored runs."""
    return [
        HeldOutStep(
            each.measured.run.source, -math.log(each.time_ratio), each.prediction.traits, each.prediction.unmeasured_kernels
        )
        for each in scored
        if each.time_ratio is not None and each.prediction is not None and each.prediction.traits is not None
    ]


def banded(steps: Sequence[HeldOutStep], basis: str) -> Banded:
    """The error model of steps, and its coverage of sources that it was not fitted to."""
    models = step_errors_without(steps, basis=basis)
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        low, high = (math.log(factor) for factor in models[step.source].factors(step.traits, kernels=step.kernels))
        rows, inside = found.get(step.source, (0, 0))
        found[step.source] = rows + 1, inside + (low <= step.log_ratio <= high)
    return Banded(fit_step_errors(steps, basis=basis), found)
