"""The table of serving forms: all that a plan may have, each in a folder of its own that knows no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.serving.forms import table
from meshwright.solver.serving.forms.table import FORMS
from meshwright.solver.verify.check import RULES

ROOM = Path(table.__file__).parent


def test_every_layout_of_a_serving_plan_has_one_form() -> None:
    assert [form.layout for form in FORMS] == list(get_args(ServingLayout))
    assert list(RULES) == list(get_args(ServingLayout))


def test_every_folder_or_module_is_a_form() -> None:
    places = {path.stem for path in ROOM.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {form.name for form in FORMS} == places - {"__init__", "form", "table"}


@pytest.mark.parametrize("form", [form.name for form in FORMS])
def test_a_form_imports_no_other(form: str) -> None:
    modules = [*ROOM.glob(f"{form}.py"), *(ROOM / form).glob("*.py")]
    assert modules
    for module in modules:
        imported = set(re.findall(r"serving\.forms\.(\w+)", module.read_text(encoding="utf-8")))
        assert not imported & ({other.name for other in FORMS} - {form}), module.name


@pytest.mark.parametrize("room", ["engines", "promise", "workers"])
def test_what_forms_stand_on_knows_none_of_them(room: str) -> None:
    files = sorted((ROOM.parent / room).glob("*.py"))
    assert len(files) > 3
    for module in files:
        assert "serving.forms" not in module.read_text(encoding="utf-8"), module.name


def test_what_asks_all_forms_imports_none_of_them() -> None:
    text = (ROOM.parent / "planning.py").read_text(encoding="utf-8")
    assert set(re.findall(r"serving\.forms\.([\w.]+)", text)) <= {"form", "table"}
    named = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not named & {layout.__name__ for layout in get_args(ServingLayout)}
