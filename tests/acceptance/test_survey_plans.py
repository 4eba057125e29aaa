"""The survey's published plans (section 6, Tables 10, 11, 13 and 14), each as a request and a plan for `meshwright predict`.

They ran on 8 Ascend 910B, 1,024 sequences of 4,096 tokens in micro-batches of one; survey_steps.csv has their step times. What
the tables do not say comes from the mapping of sources.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

import meshwright
from meshwright.app.evidence.tables import write_requests
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import sources_of
from tests.unit.app.validation.tables import MAPPING, write_table

MODELS = {
    "LLaMA-7B": {"n_layers": "32", "hidden": "4096", "heads": "16", "kv_heads": "16", "ffn_hidden": "11008"},
    "LLaMA-1B": {"n_layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "", "ffn_hidden": "8192"},
    "Mamba-7B": {"n_layers": "40", "hidden": "4096", "ffn_hidden": "10880", "heads": "", "kv_heads": ""}
    | {"arch": "mamba2 state=128 ngroups=8 expand=2 chunk=64"},
    "Mamba-1B": {"n_layers": "16", "hidden": "2048", "ffn_hidden": "4096", "heads": "", "kv_heads": ""}
    | {"arch": "mamba2 state=64 ngroups=8 expand=2 chunk=64"},
}
COMMON = {
    "source_id": "seed_ascend", "vocab": "", "gpu": "Ascend-910B", "gpu_mem_gb": "60", "precision": "", "global_batch": "1024",
    "recompute": "", "flash_attention": "1",
}  # fmt: skip

FAR_OFF = {"LLaMA-7B": {(2, 1, 1, 4)}, "LLaMA-1B": {(4, 1, 2, 1)}, "Mamba-7B": set(), "Mamba-1B": set()}
"""Plans (dp, pp, tp, cp) that are off by more than 25%; docs/cost-models.md says what limits them."""

Degrees = tuple[int, ...]


def published(model: str) -> dict[Degrees, float]:
    """Measured seconds of each plan of a model."""
    with Path(__file__).with_name("survey_steps.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    return {tuple(int(row[axis]) for axis in ("dp", "pp", "tp", "cp")): float(row["step_time_s"]) for row in rows}


def predicted(model: str, folder: Path) -> dict[Degrees, float]:
    """Predicted seconds of the same plans, through files of requests and plans."""
    plans = list(published(model))
    cells = [COMMON | MODELS[model] | {"dp": str(dp), "pp": str(pp), "tp": str(tp), "cp": str(cp)} for dp, pp, tp, cp in plans]
    table = write_table(folder / "survey.csv", *cells)
    rows = read_measured_runs(table, sources_of(table, MAPPING))
    assert write_requests(rows, folder / "requests") == len(plans)
    answers = [
        meshwright.predict(*(folder / "requests" / f"row-{row.run.line}.{kind}.json" for kind in ("request", "plan")))
        for row in rows
    ]
    return {plan: answer.predicted["step_time_s"] for plan, answer in zip(plans, answers, strict=True)}


# A request and a plan of each of 68 rows are written, read and checked: about 0.1 s each.
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("model", MODELS)
def test_the_published_best_plan_is_predicted_best(model: str, tmp_path: Path) -> None:
    measured, found = published(model), predicted(model, tmp_path)
    assert min(found, key=lambda plan: found[plan]) == min(measured, key=lambda plan: measured[plan])
    errors = {plan: abs(found[plan] / measured[plan] - 1) for plan in measured}
    assert {plan for plan, error in errors.items() if error > 0.25} == FAR_OFF[model]
    assert fmean(errors.values()) < 0.12
