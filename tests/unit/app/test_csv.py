"""Tables as CSV: what is read back is what was written, and no cell is a formula to a spreadsheet."""

from __future__ import annotations

import csv
import io

from hypothesis import example, given, settings

from meshwright.app.base.quoting import HIDDEN, csv_text
from tests.attacks.names import names


@settings(max_examples=60, deadline=None)
@example("=1+1")
@example("@SUM(A1)")
@example('a,"b"\nc')
@given(name=names)
def test_a_name_is_one_cell_and_no_formula(name: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text([{"name": name, "n": -1.5}, {"n": 2, "more": [name]}]))))
    assert rows[0] == ["name", "n", "more"] and [len(row) for row in rows] == [3, 3, 3]
    assert rows[1][1:] == ["-1.5", ""] and rows[2][:2] == ["", "2"]
    for row in rows:
        assert not any(HIDDEN.search(cell) for cell in row)
    assert not rows[1][0].startswith(("=", "+", "-", "@"))


def test_nothing_is_a_line_of_no_columns() -> None:
    assert csv_text([]) == "\n"
    assert csv_text([{"a": None, "b": True}]) == "a,b\n,true\n"
