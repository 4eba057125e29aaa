"""What people brought elsewhere, with what became of it: launch commands, configurations and words for clusters.

Run from the root of the repository with the folder of the cases, which is not part of it:
python -m benchmarks.cases ../shared/cases
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.cli.main import cli
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.resolve import read_model
from meshwright.costmodels.errors import MeshwrightError

STARTS = frozenset({"runs", "misses"})
"""Verdicts on commands that start and fit."""
NEAR = 0.005
"""Share by which parameters may differ from those that a source states."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case, what is true of it, what is said, and whether that is right."""

    name: str
    truth: str
    said: str
    is_right: bool


def main() -> None:
    """Print the outcome of every case, and how many of each kind are right."""
    folder = Path(sys.argv[1]).resolve()
    kinds = {
        "serving commands": list(_commands(folder)),
        "configurations": list(_configurations(folder)),
        "words for clusters": list(_clusters(folder)),
    }
    for kind, outcomes in kinds.items():
        for each in outcomes:
            print(f"{'  ' if each.is_right else 'X '}{kind:20} {each.name:28} {each.truth[:40]:40} {each.said[:90]}")
    print()
    for kind, outcomes in kinds.items():
        print(f"{kind}: {sum(each.is_right for each in outcomes)} of {len(outcomes)}")


def _commands(folder: Path) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        os.symlink(folder / "configs", "cfg")
        for row in _rows(folder / "serving_commands.csv"):
            words = shlex.split(row["meshwright"])
            said = _explained([*words[: words.index("--")], "--json", *words[words.index("--") :]])
            starts = row["truth"] == "starts"
            is_right = (said in STARTS) == starts and not said.startswith("refused")
            yield Outcome(row["id"], row["truth"], said, is_right)


def _explained(words: list[str]) -> str:
    """The verdict on a command, or the error that it gets."""
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told), contextlib.suppress(SystemExit):
        cli(words, standalone_mode=False, prog_name="meshwright")
    document: dict[str, Any] = json.loads(printed.getvalue())
    return str(document.get("verdict") or f"refused: {told.getvalue().strip()}")


def _configurations(folder: Path) -> Iterator[Outcome]:
    files = FilesBeside(folder / "configs")
    for row in _rows(folder / "configs.csv"):
        stated = float(row["parameters"]) if row["parameters"] else None
        truth = "no figure" if stated is None else f"{stated:,.0f} ({row['where the figure is from']})"
        try:
            read = read_model({"huggingface": row["folder"]}, files=files)
        except MeshwrightError as error:
            yield Outcome(row["folder"], truth, f"refused: {error}", is_right=False)
            continue
        found = read.parameters()
        yield Outcome(row["folder"], truth, f"{found:,}", is_right=stated is None or abs(found / stated - 1) <= NEAR)


def _clusters(folder: Path) -> Iterator[Outcome]:
    for row in _rows(folder / "clusters.csv"):
        truth = f"{row['devices']} devices on {row['nodes']} nodes: {row['device']}"
        try:
            groups = cluster_of_words(row["words"], {}).groups
        except MeshwrightError as error:
            yield Outcome(row["words"], truth, f"refused: {error}", is_right=False)
            continue
        counted = (sum(group.n_devices for group in groups), sum(group.nodes for group in groups))
        said = f"{counted[0]} devices on {counted[1]} nodes: {', '.join(group.node.device.name for group in groups)}"
        yield Outcome(
            row["words"], truth, said, is_right=row["nodes"] in ("", str(counted[1])) and str(counted[0]) == row["devices"]
        )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
