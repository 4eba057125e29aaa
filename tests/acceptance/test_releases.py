"""A release has one version everywhere, and its page names what is stable."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PINNING = [path for path in (ROOT / "examples" / "ci").rglob("*") if path.is_file() and path.suffix in (".yml", ".yaml")]


def test_the_change_log_has_this_version_with_a_day_below_what_is_unreleased() -> None:
    headings = re.findall(r"^## \[([^]]+)\](.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == VERSION
    assert re.fullmatch(r" - \d{4}-\d{2}-\d{2}", headings[1][1])


def test_examples_pin_this_version() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PINNING)
    pinned = re.findall(r"(?:meshwright==|meshwright@v|rev: v)([\d.]+)", text)
    assert len(pinned) == 3
    assert set(pinned) == {VERSION}


@pytest.mark.parametrize("form", ["request", "plan"])
def test_the_page_names_the_forms_that_it_promises(form: str) -> None:
    from meshwright.app.web.json_schemas import schema_id

    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    assert schema_id(form).split("/")[0] in page


def test_what_is_stored_or_locked_reads_no_version_of_the_package() -> None:
    modules = [
        ROOT / "app" / "store" / "plans.py",
        *(ROOT / "app" / "requests").glob("*.py"),
        *(ROOT / "solver").rglob("*.py"),
    ]
    modules += [ROOT / "app" / "regression" / name for name in ("inputs.py", "lock.py", "locked_plan.py")]
    readers = [
        path.name for path in modules if re.search(r"base\.version|importlib\.metadata", path.read_text(encoding="utf-8"))
    ]
    assert len(modules) > 100
    assert readers == []


@pytest.mark.parametrize(("words", "program"), [("Install it and plan", "meshwright plan"), ("Run the tests", "pytest")])
def test_continuous_integration_runs_the_command_that_the_readme_gives_for_it(words: str, program: str) -> None:
    said = f'$(.ci/readme-command "{words}")'
    assert said in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = subprocess.run([ROOT / ".ci" / "readme-command", words], capture_output=True, text=True, check=True).stdout
    assert f".venv/bin/{program}" in command


def test_a_command_that_the_readme_does_not_give_ends_continuous_integration() -> None:
    assert subprocess.run([ROOT / ".ci" / "readme-command", "Nothing of the kind"], check=False).returncode == 1
