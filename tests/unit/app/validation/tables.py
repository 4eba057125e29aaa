"""Small tables of measured runs, made in the test."""

from __future__ import annotations

import csv
from pathlib import Path

from meshwright.app.evidence.training.rows import COLUMNS, Run, ValidationRun, read_measured_runs
from meshwright.app.evidence.training.sources import sources_of

LLAMA_8B = {
    "source_id": "ours",
    "model": "llama",
    "n_layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn_hidden": "14336",
    "vocab": "128256",
    "gpu": "A100-SXM-80GB",
    "gpu_mem_gb": "80",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "precision": "bf16",
    "seq_len": "4096",
    "micro_batch": "1",
    "global_batch": "64",
    "dp": "1",
    "tp": "4",
    "pp": "2",
    "recompute": "none",
    "flash_attention": "1",
    "step_time_s": "10",
    "peak_mem_gb": "50",
    "quality": "A",
    "status": "ok",
    "arch": "dense-gated",
    "group": "g",
}


ROWS = (
    {},
    {"dp": "2", "tp": "4", "pp": "1"},
    {"recompute": "full"},
    {"recompute": "selective", "zero_stage_or_fsdp": "1"},
    {"dp": "8", "tp": "1", "pp": "1", "zero_stage_or_fsdp": "3"},
    {"tp": "2", "cp": "2"},
    {"vpp": "2"},
    {"precision": "fp8", "gpu": "H100"},
    {"flash_attention": "0"},
    {"gpu": "abacus"},
)
"""Changes that make rows of different kinds."""


def write_table(path: Path, *changes: dict[str, str]) -> Path:
    """A table with one row for each change of `LLAMA_8B`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(LLAMA_8B | change for change in changes)
    return path


MAPPING = Path(__file__).parents[4] / "benchmarks" / "measured.sources.yaml"


def measured(folder: Path, **changes: str) -> ValidationRun:
    """One row, read with the mapping of the published tables."""
    table = write_table(folder / "one.csv", changes)
    return read_measured_runs(table, sources_of(table, MAPPING))[0]


def run(folder: Path, **changes: str) -> Run:
    """Return the run of one row."""
    return measured(folder, **changes).run
