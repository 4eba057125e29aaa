"""The predicted figures of a row, as measured tables have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.app.evidence.serving.rows import Statistic
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.models.catalog import model, model_names
from meshwright.app.models.catalog.copies import catalogue_name_in_words
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.files import read_document
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.queueing.simulation.replica import SimulationResult
from meshwright.solver.problem.graph import ModelGraph

_QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Figures:
    """Predicted figures; times in milliseconds. ``tpot_ms`` is the mean, None where every answer is one token; a roofline has
    no percentiles."""

    ttft_mean_ms: float
    ttft_median_ms: float
    tpot_ms: float | None
    output_tokens_per_s: float
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_median_ms: float | None = None
    tpot_p95_ms: float | None = None
    tpot_p99_ms: float | None = None
    ttft_p90_ms: float | None = None
    tpot_p90_ms: float | None = None

    def ttft_of(self, statistic: Statistic | None) -> float | None:
        """The time to first token in a statistic, the mean where none is stated; milliseconds."""
        return getattr(self, f"ttft_{(statistic or Statistic.MEAN).value}_ms")  # type: ignore[no-any-return]

    def tpot_of(self, statistic: Statistic | None) -> float | None:
        """The time per output token in a statistic, the mean where none is stated; milliseconds."""
        if statistic is None or statistic is Statistic.MEAN:
            return self.tpot_ms
        return getattr(self, f"tpot_{statistic.value}_ms")  # type: ignore[no-any-return]

    def later(self, more_ms: float) -> Figures:
        """The same with every first token later by so many milliseconds."""
        moved = {name: value + more_ms for name in _TTFT if (value := getattr(self, name)) is not None}
        return replace(self, **moved)


def expected_figures(found: Sequence[tuple[float, Figures]]) -> Figures:
    """The mean of figures that are each as likely as their weight says; None where one has none."""
    total = sum(weight for weight, _ in found)

    def mean(name: str) -> float | None:
        values = [(weight, getattr(figures, name)) for weight, figures in found]
        return None if any(value is None for _, value in values) else sum(w * v for w, v in values) / total

    return Figures(**{each.name: mean(each.name) for each in fields(Figures)})  # type: ignore[arg-type]


_TTFT = ("ttft_mean_ms", "ttft_median_ms", "ttft_p90_ms", "ttft_p95_ms", "ttft_p99_ms")


def figures_of(result: SimulationResult, *, outside_s: float, output_tokens_per_s: float) -> Figures:
    """Figures of a run whose first tokens are ``outside_s`` later than in the engine."""
    ttft_ms, tpot_ms = (result.ttft_s + outside_s) * 1e3, result.tpot_s * 1e3
    ttft_median, ttft_p90, ttft_p95, ttft_p99 = (float(q) for q in np.quantile(ttft_ms, _QUANTILES))
    tpot_median, tpot_p90, tpot_p95, tpot_p99 = (
        [float(q) for q in np.quantile(tpot_ms, _QUANTILES)] if tpot_ms.size else [None] * len(_QUANTILES)
    )
    return Figures(
        ttft_mean_ms=float(np.mean(ttft_ms)),
        ttft_median_ms=ttft_median,
        tpot_ms=float(np.mean(tpot_ms)) if tpot_ms.size else None,
        output_tokens_per_s=output_tokens_per_s,
        ttft_p95_ms=ttft_p95,
        ttft_p99_ms=ttft_p99,
        tpot_median_ms=tpot_median,
        tpot_p95_ms=tpot_p95,
        tpot_p99_ms=tpot_p99,
        ttft_p90_ms=ttft_p90,
        tpot_p90_ms=tpot_p90,
    )


# The model of a row: one of the catalogue under any of its names, or a config file in a folder that is given.


def named_model(text: str, models: Path | None) -> tuple[str, str]:
    """Return the name of a row's model, and the path of its config file, empty where it is the catalogue's.

    In the folder ``models`` the model ORG/NAME is ORG--NAME.json, ORG/NAME/config.json, NAME.json or NAME/config.json, or the
    cell is the path of a file in it. Raises NotPredictedError where there is neither.
    """
    config = None if models is None else _file_of(text, models)
    if config is not None:
        return text, str(config)
    name = catalogue_name_in_words(text, model_names())
    if name is None:
        raise NotPredictedError(f"model not in the catalogue: {text}")
    return name, ""


def _file_of(text: str, models: Path) -> Path | None:
    last, folder = text.rsplit("/", maxsplit=1)[-1], models.resolve()
    tried = (text, f"{text.replace('/', '--')}.json", f"{text}/config.json", f"{last}.json", f"{last}/config.json")
    for found in (folder / name for name in tried):
        if found.resolve().is_relative_to(folder) and found.is_file():
            return found
    return None


@cache
def graph_of(name: str, config: str) -> ModelGraph:
    """The graph of a named model; raises ModelError for a config file that can't be read as one."""
    return read_huggingface_config(document_of(config), name=name) if config else model(name)


def document_of(config: str) -> dict[str, Any]:
    """The parsed config file at a path; raises ModelError for one that is no object."""
    document = read_document(config, what="the config of a model")
    if not isinstance(document, dict):
        raise ModelError("the config of a model must be an object", given=config)
    return document
