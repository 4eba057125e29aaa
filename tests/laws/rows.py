"""A row's answer does not depend on the rows beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from meshwright.app.evidence.tables import table_document, validate_table
from tests.laws.law import Law
from tests.unit.app.validation.serving.tables import ROWS as SERVING
from tests.unit.app.validation.serving.tables import write_points
from tests.unit.app.validation.tables import ROWS as TRAINING
from tests.unit.app.validation.tables import write_table

Cells = tuple[tuple[str, str], ...]

_KINDS: dict[str, tuple[Callable[..., Path], Sequence[dict[str, str]], str, dict[str, list[str]]]] = {
    "training": (
        write_table,
        TRAINING,
        "runs",
        {
            "precision": ["bf16", "fp16", "fp8", "int4"],
            "recompute": ["", "full", "selective", "all"],
            "global_batch": ["8", "64", "65"],
            "source_id": ["ours", "theirs"],
            "gpu": ["A100-SXM-80GB", "H100", "abacus"],
        },
    ),
    "serving": (
        write_points,
        SERVING,
        "points",
        {
            "precision": ["bf16", "fp8", "int4"],
            "concurrency": ["1", "4", "16"],
            "isl": ["64", "500"],
            "osl": ["1", "20"],
            "engine": ["vllm", "sglang", "trtllm"],
        },
    ),
}
"""Of each kind of table: what writes it, its rows, the name of its answers, and words of cells that change them.

Tables are too small for constants of engines to be fitted to them: those are of all rows."""


def _answers(kind: str, rows: Sequence[Cells]) -> list[dict[str, Any]]:
    write, _, each, _ = _KINDS[kind]
    with TemporaryDirectory() as folder:
        found = table_document(validate_table(write(Path(folder) / "table.csv", *(dict(row) for row in rows))))[each]
    return [{name: value for name, value in answer.items() if name != "line"} for answer in found]


@cache
def _alone(kind: str, row: Cells) -> dict[str, Any]:
    (answer,) = _answers(kind, [row])
    return answer


def is_answered_alike(drawn: tuple[str, list[dict[str, str]]]) -> None:
    kind, cells = drawn
    rows = [tuple(sorted(row.items())) for row in cells]
    for row, answer in zip(rows, _answers(kind, rows), strict=True):
        assert answer == _alone(kind, row)


def _tables(kind: str) -> st.SearchStrategy[tuple[str, list[dict[str, str]]]]:
    _, rows, _, words = _KINDS[kind]
    changes = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in words.items()})
    row = st.builds(lambda given, change: given | change, st.sampled_from(rows), changes)
    return st.tuples(st.just(kind), st.lists(row, min_size=3, max_size=6))


LAW = Law(
    sentence="A row's answer does not depend on the rows beside it.",
    drawn={"drawn": _tables("training") | _tables("serving")},
    check=is_answered_alike,
    few=4,
    many=80,
    most=700,
    draw_s=0.5,
)
