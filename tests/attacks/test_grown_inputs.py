"""Inputs grown for their cost: none of a few hundred is beyond its budget, and what is dear by design is found."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.fuzz_cost import inputs_of, shrunk, tried
from benchmarks.ways_in import WAYS_IN, WayIn
from meshwright.app.evidence.measuring.sample_files import read_samples
from meshwright.app.launching.reading.shell_words import statements_of
from meshwright.costmodels.errors import InvalidInputError

ROOT = Path(__file__).resolve().parents[2]
HEAD = "device,kind,dtype,m,n,k,batch,time_s,software\n"
ROW = "h100_sxm,gemm,bf16,4096,4096,4096,1,0.0002,{}\n"


@pytest.mark.slow
def test_no_input_of_a_few_hundred_is_beyond_its_budget() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz_cost", "--inputs", "300", "--cpu-times", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"dearest {way.name}:" in done.stdout for way in WAYS_IN)


def test_what_takes_memory_by_the_square_of_its_length_is_found_and_made_shorter() -> None:
    way = WayIn("square", lambda text: bytearray(text.count(b"a") ** 2), lambda: [b"a b\nc d\n"])
    found = next(each for each in islice(inputs_of(way, random.Random(1), 10.0), 300) if each.is_bad)
    assert found.share > 1
    assert 4000 < len(shrunk(way, found, 10.0).text) <= len(found.text)


def test_an_error_that_is_no_refusal_is_found() -> None:
    def read(text: bytes) -> object:
        if text == b"refused":
            raise InvalidInputError("no")
        return int(text)

    way = WayIn("number", read, lambda: [b"1"])
    assert [tried(way, "0", text).is_bad for text in (b"1", b"refused", b"x")] == [False, False, True]


def test_a_long_text_beside_many_short_ones_takes_no_room_in_each_row(tmp_path: Path) -> None:
    """An array of texts gives each the room of the longest: 105 kB took 235 MiB."""
    path = tmp_path / "samples.csv"
    path.write_text(HEAD + ROW.format("x" * 50_000) + ROW.format("a") * 1000)
    with pytest.raises(InvalidInputError, match="longest software has too many characters; given: 50000; allowed: at most 64"):
        read_samples(path)
    path.write_text(HEAD + ROW.format("x" * 5000) * 1000)
    assert len(read_samples(path)) == 1000


def test_brackets_of_a_line_that_nothing_closes_are_searched_once() -> None:
    """The rest of the line was searched from each: 1.5 s for 80 kB."""

    class Counting(str):
        searched = 0

        def find(self, *given: object) -> int:
            Counting.searched += 1
            return super().find(*given)  # type: ignore[arg-type]

    assert len(list(statements_of(Counting("((" * 1000)))) > 1000
    assert Counting.searched < 10
