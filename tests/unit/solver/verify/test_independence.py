"""The checker shares no computation with the search: its modules import records, definitions, facts and one another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import meshwright.solver.problem.launchers
import meshwright.solver.verify

FACTS = {
    "meshwright.solver.problem.launchers.servers",
    "meshwright.solver.problem.launchers.trainers",
}
"""Facts of other people's programs, which stand once; launchers' own parsers judge them."""

ALLOWED = {
    "meshwright.costmodels.cluster.cluster",
    "meshwright.costmodels.implementations.profile",
    "meshwright.costmodels.model.implementation",
    "meshwright.costmodels.model.memory_law",
    "meshwright.costmodels.serving.engine_profile",
    "meshwright.costmodels.serving.latency_law",
    "meshwright.costmodels.errors",
    "meshwright.costmodels.model.dims",
    "meshwright.costmodels.model.operators",
    "meshwright.costmodels.pipeline.placement",
    "meshwright.costmodels.pipeline.program",
    "meshwright.costmodels.pipeline.timeline",
    "meshwright.costmodels.units",
    "meshwright.costmodels.model.formats",
    *FACTS,
    "meshwright.solver.answer.stage",
    "meshwright.solver.problem.choices",
    "meshwright.solver.problem.declared.constraints",
    "meshwright.solver.problem.graph",
    "meshwright.solver.answer.document",
    "meshwright.solver.answer.layouts",
    "meshwright.solver.answer.pipeline_plan",
    "meshwright.solver.answer.plan",
    "meshwright.solver.answer.predicted",
    "meshwright.solver.problem.request",
    "meshwright.solver.problem.serving_load",
}
"""Records and definitions; the event programs are the definitions of schedules, of which the search uses closed forms.
Names of dims are vocabulary. ``solver.problem.request`` takes names of optimizers and recipes from ``costmodels``, as a record
may."""


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found.add(node.module or "")
    return found


def test_checker_imports_records_and_itself_only() -> None:
    files = sorted(Path(meshwright.solver.verify.__path__[0]).rglob("*.py"))
    assert len(files) > 5
    for path in files:
        ours = {name for name in imported_modules(path) if name.split(".")[0] == "meshwright"}
        foreign = {name for name in ours if name not in ALLOWED and not name.startswith("meshwright.solver.verify")}
        assert not foreign, f"{path.name} imports {sorted(foreign)}"


@pytest.mark.parametrize("module", sorted(FACTS))
def test_facts_that_the_checker_shares_are_data(module: str) -> None:
    source = Path(meshwright.solver.problem.launchers.__path__[0]) / f"{module.rpartition('.')[2]}.py"
    computing = (ast.FunctionDef, ast.Lambda, ast.Compare, ast.IfExp, ast.comprehension)
    tree = ast.parse(source.read_text(encoding="utf-8"))
    assert not [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, computing)]


@pytest.mark.parametrize(
    ("room", "other"), [("rules", "serving"), ("rules", "training"), ("serving", "training"), ("training", "serving")]
)
def test_rules_of_one_kind_of_plan_know_none_of_the_other(room: str, other: str) -> None:
    checker = Path(meshwright.solver.verify.__path__[0])
    files = sorted([*checker.glob(f"{room}.py"), *(checker / room).glob("*.py")])
    assert (checker / f"{room}.py").is_file() or len(files) > 3
    for path in files:
        assert not {name for name in imported_modules(path) if name.startswith(f"meshwright.solver.verify.{other}")}, path.name
