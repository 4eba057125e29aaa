"""``meshwright validate``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Cli
from tests.unit.app.validation.tables import write_table


def test_the_page_fits_eighty_columns(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", {}, {"status": "oom"}, {"gpu": "", "source_id": "a_name_as_long_as_it_gets"})
    assert cli("validate", str(table)) == 0
    assert "2 of 3 rows predicted" in cli.out
    assert "the row does not say which GPU" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


def test_json_is_one_document(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", {})
    assert cli("validate", str(table), "--json") == 0
    assert json.loads(cli.out)["schema"] == "meshwright.validation/1"


def test_nothing_predicted_is_a_no(cli: Cli) -> None:
    assert cli("validate", str(write_table(cli.folder / "m.csv", {"gpu": ""}))) == 1


def test_what_is_no_such_table_is_bad_input(cli: Cli) -> None:
    other = Path(cli.folder) / "other.csv"
    other.write_text("model,ttft_ms\nllama,3\n")
    assert cli("validate", str(other)) == 2
    assert "columns" in cli.err
