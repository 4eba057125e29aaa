"""The rooms of the house: each folder says what it is, stands on the map and is installed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from benchmarks.kind_questions import kind_questions, kind_tables, questions_of_kind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.problem.request import REQUESTS

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels")
FOLDERS = sorted(path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_is_one_idea_that_its_docstring_names(folder: Path) -> None:
    assert docstring_of(folder / "__init__.py").split("\n")[0].endswith("."), "the first line is a sentence"


def folders_drawn() -> list[str]:
    """Folders that the design's map lists, an indented line each."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = re.search(r"^## 1\. The house$.*?^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert drawn, "section 1 of docs/design.md has a map"
    above: list[str] = []
    found = []
    for line in drawn[1].splitlines():
        named = re.fullmatch(r"( *)([\w-]+)/ +\S.*", line)
        assert named, f"a folder and what it is: {line!r}"
        above = [*above[: len(named[1]) // 2], named[2]]
        found.append("/".join(above))
    return found


def test_the_map_of_the_design_names_every_folder_and_no_other() -> None:
    drawn = folders_drawn()
    assert len(drawn) == len(set(drawn))
    assert [folder for folder in drawn if not (ROOT / folder).is_dir()] == []
    files = {path for floor in FLOORS for path in (ROOT / floor).rglob("*") if path.suffix in (".py", ".json")}
    folders = {name_of(above) for path in files for above in path.parents if above.is_relative_to(ROOT) and above != ROOT}
    assert sorted(folders - set(drawn)) == []


def questions() -> list[tuple[str, str, str]]:
    """The newcomer's questions of the design: what is looked for, the words to search for, and the file that has them."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.search(r"^### Where is \.\.\.\?$.*?(?=^###)", text, re.DOTALL | re.MULTILINE)
    assert rows
    return re.findall(r"^\| ([^|]+) \| `([^`]+)` \| `([^`]+)` \|$", rows[0], re.MULTILINE)


def test_a_newcomers_questions_are_answered_by_one_search_each() -> None:
    assert len(questions()) >= 10
    sources = {name_of(path): path.read_text(encoding="utf-8") for floor in FLOORS for path in (ROOT / floor).rglob("*.py")}
    for question, words, place in questions():
        found = [name for name, text in sources.items() if re.search(re.escape(words) + r"(?!\w)", text)]
        assert place in found, question
        assert len(found) <= 3, f"{question}: {words} is in {found}"


PAGES = sorted(path for place in ("*.md", "docs/**/*.md") for path in ROOT.glob(place) if path.name != "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_places_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(
        re.findall(r"(?<![\w/.-])((?:app|solver|costmodels|migrations|tests|benchmarks|docs|examples)/[\w./-]*\w)", text)
    )
    # NAME stands for what a reader adds.
    assert sorted(place for place in named if "NAME" not in place and not (ROOT / place).exists()) == []


def test_every_folder_of_python_is_a_package_behind_a_link() -> None:
    for floor in (*FLOORS, "migrations"):
        assert (ROOT / "meshwright" / floor).readlink() == Path("..") / floor
        folders = {path.parent for path in (ROOT / floor).rglob("*.py")}
        assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_file_of_tests_imports_another() -> None:
    """What they share lies in a module of its own: a change of one file of tests breaks no other."""
    lines = [
        f"{name_of(path)}: {line}"
        for folder in ("tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*from tests\.(?:\w+\.)*test_\w+ import", line)
    ]
    assert lines == []


ASKING_FOR_A_KIND = frozenset(
    (
        "app/base/plan_words.py",
        "app/cli/commands/planning.py",
        "app/cli/commands/validating.py",
        "app/cli/shard_command.py",
        "app/evidence/logs/matching.py",
        "app/evidence/logs/table.py",
        "app/evidence/tables.py",
        "app/pictures/simulation_trace.py",
        "app/pictures/step_timeline.py",
        "app/requests/several_clusters.py",
        "app/service/explaining/explain.py",
        "app/service/explaining/slow.py",
        "app/service/load.py",
        "app/service/trials.py",
        "solver/switching/switch.py",
    )
)
"""Files that may ask once each whether something is training or serving: for what one kind alone has, as a load."""


def test_whether_something_is_training_or_serving_is_looked_up_and_not_asked() -> None:
    asked = kind_questions()
    assert {path for path, lines in asked.items() if len(lines) > 1} | (asked.keys() - ASKING_FOR_A_KIND) == set()
    assert ASKING_FOR_A_KIND - asked.keys() == set(), "files that ask no more"


def test_every_table_of_kinds_has_a_row_for_each() -> None:
    without = {
        f"{path}:{line}": set(REQUESTS) - rows
        for path, tables in kind_tables().items()
        for line, rows in tables.items()
        if not rows >= set(REQUESTS)
    }
    assert without == {}
    assert {get_args(get_type_hints(record)["kind"]) for record in (Plan, PlanRecord)} == {tuple(REQUESTS)}


@pytest.mark.parametrize(
    "asking",
    [
        "isinstance(request, TrainingRequest)",
        "isinstance(request, problem.request.ServingRequest | None)",
        "type(request) is TrainingRequest",
        "plan.kind == 'serving'",
        "'training' != document['workload']['kind']",
        "match plan.kind:\n    case 'training':\n        pass",
        "match request:\n    case ServingRequest(slo=slo):\n        pass",
    ],
)
def test_a_question_of_kind_is_counted_in_each_of_its_forms(asking: str) -> None:
    assert len(questions_of_kind(ast.parse(asking))) == 1
    assert questions_of_kind(ast.parse("PLANNERS[request.workload.kind].plan(request)")) == []
