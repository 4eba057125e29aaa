"""How much words that a table leaves unsaid would move its predictions, had they been said otherwise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any, get_args, get_type_hints

from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.app.evidence.training.plans import given_plan
from meshwright.app.evidence.training.prediction import Prediction, predict_run
from meshwright.app.evidence.training.rows import Run
from meshwright.app.evidence.training.stated import UnstatedSequence
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.units import DType
from meshwright.solver.problem.implementation import StatedImplementation

ROWS_TRIED = 12
"""Rows that are predicted once for each word that they leave unsaid, some 40: 2 to 4 s on tables of 147 to 2,461 rows."""


@dataclass(frozen=True, slots=True)
class UnsaidWord:
    """A word that some rows leave unsaid, in place of what was assumed of them.

    name       field or column that says it: `implementation.host`, `recompute`
    word       what it might have said
    rows       tried rows that leave it unsaid, and that could have run so
    time       predicted step time with it over that without, geometric mean over these rows
    memory     the same of memory
    """

    name: str
    word: str
    rows: int
    time: float
    memory: float

    def moves(self, factor: float) -> float:
        """Return how far one of its factors moves all tried rows together, on a logarithmic scale and without sign."""
        return self.rows * abs(math.log(factor))


def unsaid_words(predicted: Sequence[tuple[Run, Prediction]]) -> tuple[UnsaidWord, ...]:
    """Every word that could be said of at most `ROWS_TRIED` rows, spread over those whose source no mapping names."""
    silent = [(run, prediction) for run, prediction in predicted if run.reading.is_assumed]
    tried = silent[:: max(1, math.ceil(len(silent) / ROWS_TRIED))]
    ratios = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for run, assumed in tried:
        for name, word, said in _said_otherwise(run):
            try:
                with of_one_row():
                    found = predict_run(said)
            except NotPredictedError:
                continue
            time, memory = found.step_time_s / assumed.step_time_s, found.peak_memory_gb / assumed.peak_memory_gb
            ratios[name, word].append((math.log(time), math.log(memory)))
    return tuple(
        UnsaidWord(name, word, len(logs), *(math.exp(fmean(each)) for each in zip(*logs, strict=True)))
        for (name, word), logs in ratios.items()
    )


_IMPLEMENTATION = {
    name: next((each for each in get_args(hint) if isinstance(each, type) and issubclass(each, StrEnum)), None)
    for name, hint in get_type_hints(StatedImplementation).items()
    if name != "trained"  # who trains adapters says so: it is what a run does, not how
}
"""The kind of word of each field of an implementation; None of those that are no words."""


def _said_otherwise(run: Run) -> Iterator[tuple[str, str, Run]]:
    """A run with one word said that it leaves unsaid: the name of its field or column, the word, the run."""
    workload = given_plan(run).request.workload
    assert workload.implementation is not None, "given plans have every field of it decided"
    for name, kind in _IMPLEMENTATION.items():
        assumed = getattr(workload.implementation, name)
        for word in () if kind is None or getattr(run.implementation, name) is not None else kind:
            if word is not assumed:
                said: dict[str, Any] = {name: word}
                yield f"implementation.{name}", word, replace(run, implementation=replace(run.implementation, **said))
    reading = run.reading
    for dtype in sorted({DType.FP32, workload.precision} - {workload.gradient_dtype}):
        yield "gradient_dtype", dtype, replace(run, reading=replace(reading, gradient_dtype=dtype))
    if run.precision == "fp8":
        for recipe in sorted({MatmulRecipe.FP8_DELAYED, MatmulRecipe.FP8_CURRENT} - {reading.fp8_recipe}):
            yield "fp8_recipe", recipe, replace(run, reading=replace(reading, fp8_recipe=recipe))
    if not run.recompute:
        for recompute in ("selective", "full"):
            yield "recompute", recompute, replace(run, recompute=recompute)
    if not run.zero:
        for stage in sorted({0, 1, MAX_ZERO_STAGE} - {reading.zero_stage}):
            yield "zero_stage_or_fsdp", str(stage), replace(run, zero=str(stage))
    if run.sequence_parallel is None:
        parallel = reading.unstated_sequence is not UnstatedSequence.PARALLEL
        yield "sp", str(int(parallel)), replace(run, sequence_parallel=int(parallel))


SHOWN_WORDS = 3


def moving_most(words: Sequence[UnsaidWord], factor: Callable[[UnsaidWord], float]) -> tuple[UnsaidWord, ...]:
    """The `SHOWN_WORDS` names whose words move a figure most, each by its furthest word; none that leave it as it is."""
    ordered = sorted(words, key=lambda each: -each.moves(factor(each)))
    furthest = dict[str, UnsaidWord]()
    for each in ordered:
        furthest.setdefault(each.name, each)
    return tuple(each for each in furthest.values() if f"{factor(each):.2f}" != "1.00")[:SHOWN_WORDS]
