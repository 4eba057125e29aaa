"""The files of continuous integration, run as they run there: the action's steps, the GitLab job, the hook, the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.regression.check import find_requests
from meshwright.app.regression.lock import read_lock, read_policy
from meshwright.app.requests.digests import KeyedRequest
from tests.integration.regression.project import LOCK, NAME, REQUEST, Project

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "examples" / "ci"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


class Shell:
    """Runs commands as a CI runner does, in the project's repository, with a pip that notes what it was asked for."""

    def __init__(self, project: Project):
        self.repository, self.bin = project.folder.parent, project.folder.parent / "bin"
        self.bin.mkdir()
        self.noted = self.repository / "installed.txt"
        self._tool("meshwright", f'exec {sys.executable} -c "from meshwright.app.cli.main import main; main()" "$@"')
        self._tool("python", f'[ "$1 $2" = "-m pip" ] && echo "$@" >> {self.noted} && exit 0; exec {sys.executable} "$@"')

    def _tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def __call__(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)} | variables
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def action_steps(**inputs: str) -> list[tuple[str, dict[str, str]]]:
    """Script and variables of the action's own steps, its expressions filled in."""
    action = read_yaml(ROOT / "action.yml")
    values = {f"inputs.{name}": given.get("default", "") for name, given in action["inputs"].items()}
    values |= {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda match: values[match[1]], text)

    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert all(step["shell"] == "bash" and "${{" not in step["run"] for step in steps)
    return [(step["run"], {name: filled(value) for name, value in step["env"].items()}) for step in steps]


@pytest.mark.slow
def test_the_action_gitlab_and_the_hook_notice_a_regression(project: Project) -> None:
    shell = Shell(project)
    project.write(REQUEST | {"slo": {"min_tokens_per_s": 10_000_000}})
    summary = shell.repository / "summary.md"
    summary.write_text("# Steps before\n")
    for script, variables in action_steps(directory="plans"):
        ran = shell(script, **variables, GITHUB_STEP_SUMMARY=str(summary))
    assert ran.returncode == 1, ran.stderr
    assert f"::error file=plans/{NAME},line=1,title=meshwright%3A slo::" in ran.stdout
    assert summary.read_text().startswith("# Steps before\n## Plans in `plans`: failed\n")
    assert (shell.repository / "meshwright-junit.xml").exists() and (shell.repository / "meshwright.sarif").exists()
    assert shell.noted.read_text() == (
        f"-m pip install --quiet --require-hashes --no-deps -r {ROOT}/requirements-image.lock\n"
        f"-m pip install --quiet --no-deps --no-build-isolation --no-index {ROOT}\n"
    )

    job = read_yaml(SAMPLE / ".gitlab-ci.yml")["plans"]
    variables = {name: value.replace("$CI_PROJECT_DIR", str(shell.repository)) for name, value in job["variables"].items()}
    assert shell("\n".join([*job["before_script"], *job["script"]]), **variables).returncode == 1
    assert shell.noted.read_text().endswith("-m pip install --quiet meshwright==0.3.0\n")
    assert Path(job["artifacts"]["reports"]["junit"]).name in job["script"][-1]

    (hook,) = read_yaml(ROOT / ".pre-commit-hooks.yaml")
    (used,) = read_yaml(SAMPLE / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert used["id"] == hook["id"]
    assert re.search(hook["files"], f"plans/{NAME}") and re.search(hook["files"], f"plans/{LOCK}")
    store = {"MESHWRIGHT_DATABASE_URL": variables["MESHWRIGHT_DATABASE_URL"]}
    assert shell(" ".join([hook["entry"], *used["args"]]), **store).returncode == 1


def test_the_workflow_uses_the_action_as_it_is() -> None:
    steps = read_yaml(SAMPLE / ".github" / "workflows" / "plans.yml")["jobs"]["check"]["steps"]
    action = read_yaml(ROOT / "action.yml")
    (used,) = [step for step in steps if "meshwright" in step.get("uses", "")]
    assert set(used["with"]) <= set(action["inputs"])
    assert used["id"] == "plans" and "sarif" in action["outputs"]


@pytest.mark.slow
def test_the_pytest_plugin_makes_one_test_a_request(project: Project) -> None:
    project.write(REQUEST, "same.plan.yaml")
    project.update()
    project.write(REQUEST | {"slo": {"min_tokens_per_s": 10_000_000}})
    project.edit_lock(lambda lock: lock["plans"].update({"gone.plan.yaml": lock["plans"]["same.plan.yaml"]}))
    plugin = ["-p", "no:meshwright", "-p", "meshwright.app.cli.pytest_plugin", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "--meshwright", "plans"],
        cwd=project.folder.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "2 failed, 1 passed" in run.stdout
    assert "the SLO is not met any more: slo.min tokens per s needs" in run.stdout
    assert "cause: slo.min_tokens_per_s 20000 -> 10000000" in run.stdout
    assert "fix: bring gone.plan.yaml back" in run.stdout
    assert "Traceback" not in run.stdout


def test_the_plugin_is_an_entry_point() -> None:
    project_file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module = import_module(project_file["project"]["entry-points"]["pytest11"]["meshwright"])
    assert hasattr(module, "pytest_collect_file")


@pytest.mark.parametrize("folder", [SAMPLE / "plans", ROOT / "examples" / "locked"])
def test_the_examples_are_all_locked(folder: Path) -> None:
    lock, requests = read_lock(folder / LOCK), find_requests(folder)
    assert [found.name for found in requests] == sorted(lock.plans)
    for found in requests:
        assert isinstance(found.request, KeyedRequest), found.request
        assert lock.plans[found.name].is_sealed
    read_policy(lock.policy, folder)


def test_every_example_is_among_the_locked_ones() -> None:
    examples = {path.stem for path in (ROOT / "examples").glob("*.yaml")}
    assert {path.name.removesuffix(".plan.yaml") for path in (ROOT / "examples" / "locked").glob("*.plan.yaml")} == examples
