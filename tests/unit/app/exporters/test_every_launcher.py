"""Every launcher of the table has facts, an exporter, a row and a section in the docs, a golden export and its own parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.launching import exporters
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import ENGINES, LAUNCHERS, TRAINERS
from tests.unit.app.exporters.export import GOLDEN, golden_export

ROOT = Path(__file__).resolve().parents[4]
DOCS = (ROOT / "docs" / "exporters.md").read_text(encoding="utf-8")


def test_the_tables_hold_launchers_and_engines_in_their_order() -> None:
    assert list(LAUNCHERS) == list(Launcher)
    assert set(ENGINES) == set(ENGINE_PROFILES) == set(ServingEngine)


def test_exporters_are_those_of_the_table() -> None:
    assert tuple(Launcher) == exporters.LAUNCHERS


@pytest.mark.parametrize("launcher", list(Launcher))
def test_the_docs_name_its_release_and_kind_and_tell_of_it(launcher: Launcher) -> None:
    kind = "training" if launcher in TRAINERS else "serving"
    assert f"| `{launcher.value}` | {golden_export(launcher).version} | {kind} |" in DOCS
    assert f"- **{launcher.value}**".lower() in DOCS.lower(), "say under 'Worth knowing' what its users should know"


@pytest.mark.parametrize("launcher", list(Launcher))
def test_it_has_a_golden_export_and_its_own_parser_reads_exports(launcher: Launcher) -> None:
    assert (GOLDEN / f"{launcher.value}.txt").is_file()
    first = launcher.value.split("-")[0]
    assert any(script.name.startswith(first) for script in (Path(__file__).parent / "real").glob("*.py"))
