"""The parts that the fits of shipped calibrations share: their arguments, the split and score of rows, the register of
tables."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.costmodels.fitting.check import error_quantiles

ROOT = Path(__file__).resolve().parents[1]

HELD_OUT_SHARE = 0.2


def fit_arguments(description: str | None, *, devices: Iterable[str] = ()) -> argparse.Namespace:
    """``data``, ``check`` and, where there is a choice, ``device``; exits with 2 where the tables are not there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = sorted(devices)
    if choices:
        parser.add_argument("--device", choices=choices, action="append")
    parser.add_argument("--data", type=Path, default=ROOT / ".." / "shared" / "data" / "calibration")
    parser.add_argument("--check", action="store_true", help="print errors, write nothing")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.exit(2, f"no measured tables at {arguments.data}: pass --data\n")
    return arguments


def random_split(rows: int) -> Any:
    """Rows that a fit sees: four in five."""
    train = np.ones(rows, bool)
    train[np.random.default_rng(1).permutation(rows)[: int(rows * HELD_OUT_SHARE)]] = False
    return train


def scored(label: str, ratio: Any, held_out: Any) -> dict[str, Any]:
    """Print and return the error of predicted over measured times on held-out rows, as a calibration's file has it."""
    median, p95 = error_quantiles(ratio[held_out])
    print(f"{label:58s} held out {held_out.sum():6d} rows: median {median:6.1%}  p95 {p95:6.1%}", flush=True)
    return {"median": round(median, 4), "p95": round(p95, 4), "basis": f"{int(held_out.sum())} held-out rows of {len(ratio)}"}


def registered_tables(data: Path, is_wanted: Callable[[str], bool]) -> dict[str, str]:
    """Tables of aiconfigurator-core in the register: name in its wheel -> hash, rows and licence."""
    with open(data / "SOURCES.csv", encoding="utf-8", newline="") as register:
        return {
            row["file_in_wheel"]: f"sha256 {row['sha256_16']}, {row['rows']} rows, aiconfigurator-core 0.12.0, Apache-2.0"
            for row in csv.DictReader(register)
            if is_wanted(row["file_in_wheel"])
        }


def is_table_of(key: str, *kinds: str) -> Callable[[str], bool]:
    """Return a test of a file of the wheel: True if it is a device's table of one of these kinds."""
    return lambda name: name.startswith(f"{key}/") and name.split("/")[1] in kinds
