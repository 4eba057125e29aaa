"""Where the policy stands, and what each of its fields decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.app.regression.lock import Action, Policy, read_policy
from meshwright.costmodels.errors import InvalidInputError
from tests.integration.regression.project import Project
from tests.support.command_line import Json


def slower_network(request: Json) -> None:
    request["cluster"]["groups"][0]["node"]["inter"]["bytes_per_s"] = 6e9


def write_project_file(folder: Path, **fields: Any) -> None:
    lines = [f"{name} = {value!r}" for name, value in fields.items()]
    (folder / "pyproject.toml").write_text("\n".join(["[tool.meshwright.check]", *lines, ""]))


@pytest.mark.slow
def test_a_tolerance_decides(project: Project) -> None:
    project.edit(slower_network)
    write_project_file(project.folder.parent, throughput_tolerance=10.0, cost_tolerance=10.0)
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (0, "warned")
    assert said.finding("structure")["severity"] == "warning"


@pytest.mark.slow
def test_structure_fails_warns_or_is_allowed(project: Project) -> None:
    project.edit(slower_network)
    for action, code, verdict in (("fail", 1, "worse"), ("warn", 0, "warned"), ("allow", 0, "changed")):
        write_project_file(project.folder, throughput_tolerance=10.0, cost_tolerance=10.0, structure=action)
        said = project.check()
        assert (said.code, said.plan()["verdict"]) == (code, verdict)
        assert any(change["field"].endswith("inter.bytes_per_s") for change in said.plan()["changed_inputs"])
    assert "changed, not worse" in said.page


def test_the_floor_of_memory_headroom_is_absolute(project: Project) -> None:
    write_project_file(project.folder, min_memory_headroom_bytes=80e9)
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (1, "worse")
    assert "under the floor of 74.5 GiB" in said.finding("memory")["message"]
    assert "lower min_memory_headroom_bytes" in said.finding("memory")["fix"]
    project.update()
    assert project.check().code == 1


def test_the_lock_rules_over_pyproject_and_keeps_its_policy(project: Project) -> None:
    write_project_file(project.folder, min_memory_headroom_bytes=80e9, structure="allow")
    project.edit_lock(lambda lock: lock.update(policy={"min_memory_headroom_bytes": 1e9}))
    assert project.check().code == 0
    project.update()
    assert project.lock()["policy"] == {"min_memory_headroom_bytes": 1e9}
    policy = project.check().report["policy"]
    assert (policy["min_memory_headroom_bytes"], policy["structure"], policy["devices"]) == (1e9, "allow", "fail")


@pytest.mark.parametrize(
    "fields", [{"throughput_tolerance": -0.1}, {"structure": "ignore"}, {"tolerance": 1}, {"latency_tolerance": "1%"}]
)
def test_a_faulty_policy_is_exit_2(project: Project, fields: dict[str, Any]) -> None:
    write_project_file(project.folder, **fields)
    assert project.cli("check", str(project.folder)) == 2
    assert "pyproject.toml" in project.cli.err
    assert next(iter(fields)) in project.cli.err
    (project.folder / "pyproject.toml").unlink()
    project.edit_lock(lambda lock: lock.update(policy=fields))
    assert project.cli("check", str(project.folder)) == 2


def test_the_nearest_table_counts_up_to_the_repository(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "plans"
    (inner.parent / ".git").mkdir(parents=True)
    inner.mkdir()
    write_project_file(tmp_path, structure="fail")
    assert read_policy({}, inner) == Policy()
    (inner / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    write_project_file(inner.parent, structure="allow")
    assert read_policy({}, inner).structure is Action.ALLOW


def test_an_unreadable_project_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(InvalidInputError, match=r"pyproject\.toml can't be read"):
        read_policy({}, tmp_path)
