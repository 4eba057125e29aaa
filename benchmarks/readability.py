"""Prints how long and how hard to read each page of the documentation is; a test holds that no page gets longer or harder.

Run from the root of the repository: python -m benchmarks.readability [--lower]

``--lower`` writes what is less than before into the table that the test reads.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "acceptance" / "readability.csv"
GENERATED = ("accuracy", "benchmarks", "decisions-", "hardware", "models", "wrong")
"""Beginnings of the names of pages that programs write in large part, of measurements, faults and data: they may grow."""


@dataclass(frozen=True, slots=True)
class Score:
    """Words of a page, and the automated readability index of its prose: years of school, from letters a word and words a
    sentence (Senter and Smith 1967, AMRL-TR-66-220)."""

    words: int
    index: float


def pages() -> list[Path]:
    """Return the pages that people wrote."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in every if not page.name.startswith(GENERATED)]


def score(page: Path) -> Score:
    """Return the score of a page: all its words, and the index of what is no code, table, heading or list mark."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^\|.*$|^#.*$|^\s*[-*] ", "", re.sub(r"(?s)```.*?```", "", text), flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "it", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose))
    words = re.findall(r"\w[\w'.,-]*", prose)
    sentences = max(1, len(re.findall(r"[.:?!](?=\s|$)", prose)))
    letters = sum(map(len, words))
    return Score(len(text.split()), round(4.71 * letters / max(1, len(words)) + 0.5 * len(words) / sentences - 21.43, 1))


def known() -> dict[str, Score]:
    """Return the scores that pages may have at most, by name."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["page"]: Score(int(row["words"]), float(row["index"])) for row in csv.DictReader(file)}


def main(*, lower: bool) -> None:
    """Print the scores, and lower the table if asked to."""
    before = known() if TABLE.exists() else {}
    now = {page.name: score(page) for page in pages()}
    for name, each in now.items():
        print(f"{name:24} {each.words:6,} words  index {each.index:4.1f}")
    print(f"{'all':24} {sum(each.words for each in now.values()):6,} words")
    if lower:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("page", "words", "index"))
            for name, each in now.items():
                was = before.get(name, each)
                writer.writerow((name, min(each.words, was.words), min(each.index, was.index)))


if __name__ == "__main__":
    main(lower="--lower" in sys.argv[1:])
