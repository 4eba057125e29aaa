"""Small tables of measured serving points, made in the test."""

from __future__ import annotations

import csv
from pathlib import Path

from meshwright.app.evidence.serving.rows import COLUMNS, OPTIONAL_COLUMNS, MeasuredPoint, read_measured_points

LLAMA_8B = {
    "source": "ours",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100_sxm",
    "n_gpus": "1",
    "engine": "vllm",
    "precision": "fp8",
    "mode": "agg",
    "tp": "1",
    "pp": "1",
    "ep": "1",
    "isl": "1024",
    "osl": "128",
    "concurrency": "8",
    "ttft_ms": "100",
    "tpot_ms": "8",
}


ROWS = (
    {},
    {"concurrency": "4"},
    {"mode": "disagg", "tp": "P1x1/D1x1", "n_gpus": "2"},
    {"arrival": "poisson", "rate_req_s": "1", "concurrency": ""},
    {"engine": "sglang"},
    {"engine": "trtllm"},
    {"model": "openai/gpt-oss-20b", "precision": ""},
    {"model": "meta-llama/Llama-3.1-70B", "tp": "8", "n_gpus": "8"},
    {"speculation": "ngram"},
    {"tp": "", "n_gpus": "2"},
)
"""Changes that make rows of different kinds."""


def write_points(path: Path, *changes: dict[str, str]) -> Path:
    """A table with one row for each change of `LLAMA_8B`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *OPTIONAL_COLUMNS), restval="")
        writer.writeheader()
        writer.writerows(LLAMA_8B | change for change in changes)
    return path


def points(folder: Path, *changes: dict[str, str]) -> tuple[MeasuredPoint, ...]:
    """The rows of such a table."""
    return read_measured_points(write_points(folder / "points.csv", *changes))


def point(folder: Path, **changes: str) -> MeasuredPoint:
    """One row."""
    return points(folder, changes)[0]
