"""The rooms of the house: each folder says what it is, and is a package that is installed; modules are short or say why not."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels")
MOST_MODULES = 20
MOST_LINES = 350
WHY_LONGER = "One module, because "
"""How the docstring of a module begins the sentence that says why it is longer, or a folder fuller, than most."""

FOLDERS = sorted(path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py"))
MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_is_one_idea_that_its_docstring_names(folder: Path) -> None:
    assert docstring_of(folder / "__init__.py").split("\n")[0].endswith("."), "the first line is a sentence"
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES, "split the folder by meaning"


def test_long_modules_say_why() -> None:
    longer = [path for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    silent = [name_of(path) for path in longer if WHY_LONGER not in docstring_of(path)]
    assert not silent, "split these by meaning, or say why one module is clearer"


def test_every_folder_of_python_is_a_package_that_is_installed() -> None:
    floors = (*FLOORS, "migrations")
    folders = {path.parent for floor in floors for path in (ROOT / floor).rglob("*.py")}
    expected = {"meshwright"} | {"meshwright." + ".".join(folder.relative_to(ROOT).parts) for folder in folders}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["packages"]
    assert set(listed) == expected
    assert listed == sorted(listed)
