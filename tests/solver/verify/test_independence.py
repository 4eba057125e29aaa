"""The checker shares no code with the search: its modules import records, definitions and one another, nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import solver.verify

ALLOWED = {
    "costmodels.cluster",
    "costmodels.engine_profile",
    "costmodels.errors",
    "costmodels.operators",
    "costmodels.pipeline.build",
    "costmodels.pipeline.program",
    "costmodels.pipeline.timeline",
    "costmodels.token_slices",
    "costmodels.units",
    "costmodels.weight_format",
    "solver.axes",
    "solver.choices",
    "solver.graph",
    "solver.plan",
    "solver.plan_frontier",
    "solver.plan_stage",
    "solver.request",
    "solver.serving_load",
}
"""Records and definitions; the event programs are the definitions of schedules, of which the search uses closed forms.
``solver.request`` takes names of optimizers and recipes from ``costmodels``, as a record may."""


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
    files = sorted(Path(solver.verify.__path__[0]).glob("*.py"))
    assert len(files) > 5
    for path in files:
        ours = {name for name in imported_modules(path) if name.split(".")[0] in {"app", "solver", "costmodels"}}
        foreign = {name for name in ours if name not in ALLOWED and not name.startswith("solver.verify")}
        assert not foreign, f"{path.name} imports {sorted(foreign)}"
