"""The command line as a person or a script meets it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.cli.commands.exporting import targets
from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.store.migrate import HEAD_REVISION
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import OnProgress, Progress, ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest
from tests.support.command_line import SHARDING_PROBLEM, Cli
from tests.support.fakes import fake_predict, feasible_plan, infeasible_plan, undecided_plan
from tests.support.requests_given import serving, tiny_graph, training
from tests.unit.app.exporters.plans import training as exportable

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def solver_that_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, feasible_plan)


def answer_with(monkeypatch: pytest.MonkeyPatch, plan: Callable[[PlanRequest], Plan]) -> list[PlanRequest]:
    """Let the solver answer so; the list fills with the requests that it got."""
    asked: list[PlanRequest] = []

    def solve(request: PlanRequest, on_progress: OnProgress) -> Plan:
        asked.append(request)
        return plan(request)

    monkeypatch.setattr("meshwright.app.cli.commands.planning.solve_here", solve)
    monkeypatch.setattr("meshwright.app.cli.commands.planning.predict_here", fake_predict)
    return asked


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(request: PlanRequest) -> Plan:
        raise error

    answer_with(monkeypatch, fail)


def test_plan_prints_a_page_that_a_terminal_holds(cli: Cli) -> None:
    assert cli("plan", cli.write("request.json", training())) == 0
    assert "Feasible: 65,536 tokens/s" in cli.out
    assert "no plan in the launchable space is faster under this cost model" in cli.out
    assert max(len(line.rstrip()) for line in cli.out.splitlines()) <= 80
    assert cli.err == ""


def test_the_page_ends_with_the_command_that_exports_the_plan(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan by the planner: one that no launcher can start has no such command."""
    answer_with(monkeypatch, lambda request: solve(request, stop=never_stop, progress=ignore_progress))
    request, target = cli.write("request.json", training()), cli.folder / "plan.json"
    assert cli("plan", request) == 0
    assert "meshwright export sha256:" in cli.out
    assert cli("plan", request, "-o", str(target)) == 0
    assert f"meshwright export {target}" in cli.out.replace("\n", "")


def test_plan_as_json_is_one_document(cli: Cli) -> None:
    assert cli("plan", cli.write("request.json", training()), "--json") == 0
    plan = cli.json()
    assert {"schema", "digest", "feasible", "certificate", "predicted", "axes", "stages", "search", "request"} <= plan.keys()
    assert plan["schema"] == "meshwright.plan/1"
    assert plan["digest"].startswith("sha256:")


def test_yaml_from_stdin(cli: Cli) -> None:
    assert cli("plan", "-", "--json", stdin=yaml.safe_dump(training()).encode()) == 0
    assert cli.json()["model"] == "llama-3.1-8b"


def test_paths_in_a_request_start_at_its_folder(cli: Cli) -> None:
    (cli.folder / "deep").mkdir()
    cli.write("deep/graph.json", tiny_graph())
    assert cli("plan", cli.write("deep/request.json", training(model={"graph": "graph.json"})), "--json") == 0
    assert cli.json()["model"] == "tiny"


def test_the_store_answers_the_second_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, feasible_plan)
    request = cli.write("request.json", training())
    cli("plan", request, "--json")
    first = cli.out
    cli("plan", request, "--json")
    assert cli.out == first
    assert len(asked) == 1
    cli("plan", request, "--fresh")
    cli("plan", request, "--no-store")
    assert len(asked) == 3
    assert (cli.folder / "data" / "meshwright" / "plans.db").exists()


def test_no_store_leaves_no_file(cli: Cli) -> None:
    assert cli("plan", cli.write("request.json", training()), "--no-store") == 0
    assert not (cli.folder / "data").exists()
    assert "neither stored nor written" in cli.out


def test_a_store_that_cannot_be_used_is_a_warning(cli: Cli) -> None:
    (cli.folder / "data").write_text("a file where a folder should be")
    assert cli("plan", cli.write("request.json", training())) == 0
    assert "warning" in cli.err and "plan store" in cli.err
    assert "Feasible" in cli.out


def test_plan_file_holds_plan_and_request_whole_or_not_at_all(cli: Cli) -> None:
    target = cli.folder / "plan.json"
    assert cli("plan", cli.write("request.json", training()), "-o", str(target)) == 0
    plan = json.loads(target.read_text())
    assert plan["request"]["schema"] == "meshwright.request/1"
    assert stat.S_IMODE(target.stat().st_mode) & stat.S_IRUSR
    assert [path.name for path in cli.folder.iterdir() if path.name.startswith(".")] == []
    assert cli("plan", cli.write("request.json", training()), "-o", str(cli.folder / "no" / "plan.json")) == 2
    assert "can't be written" in cli.err


def test_a_stored_plan_of_another_form_is_solved_anew(cli: Cli) -> None:
    request = cli.write("request.json", training())
    cli("plan", request)
    with sqlite3.connect(cli.folder / "data" / "meshwright" / "plans.db") as store:
        store.execute("UPDATE plans SET plan = replace(plan, '\"feasible\"', '\"possible\"')")
    store.close()
    assert cli("plan", request) == 0
    assert "not of this version's form" in cli.err
    assert "Feasible" in cli.out


def test_infeasible_is_exit_1_with_the_reason(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, infeasible_plan)
    request = cli.write("request.json", training())
    assert cli("plan", request) == 1
    assert "need 400.0 GiB, have 76.0 GiB" in cli.out
    assert "use at least 6 nodes" in cli.out
    assert cli("plan", request, "--json") == 1
    assert cli.json()["reason"]["constraint"] == "device memory"


def test_an_answer_that_more_time_could_change_is_not_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, undecided_plan)
    request = cli.write("request.json", training())
    assert cli("plan", request) == 1
    assert "Not decided: the search was stopped" in cli.out
    assert "Proven" not in cli.out
    assert "neither stored nor written" in cli.out
    cli("plan", request)
    assert len(asked) == 2


def test_predict_takes_plan_files(cli: Cli) -> None:
    request, target = cli.write("request.json", training()), str(cli.folder / "plan.json")
    cli("plan", request, "-o", target)
    assert cli("predict", request, "--plan", target, "--json") == 0
    assert cli.json()["digest"] == ""
    assert cli("predict", request, "--plan", "-", stdin=Path(target).read_bytes()) == 0
    other = cli.write("other.json", training(cluster={"catalog": "dgx-h100", "nodes": 2}))
    assert cli("predict", other, "--plan", target) == 2
    assert "another cluster" in cli.err
    assert cli("predict", "-", "--plan", "-") == 2


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema": NaN}', "not finite"),
        (b"{" + b'"a":{' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a: &x [*x]", "alias"),
        (b" " * (8 * 2**20 + 1), "too large"),
        (json.dumps(training(cluster={"catalog": "dgx-h100", "nodes": 0})).encode(), "cluster.nodes"),
        (json.dumps(training(surprise=1)).encode(), "surprise: unknown field"),
        (json.dumps(training(model={"huggingface": "none.json"})).encode(), "No such file"),
        (json.dumps(training(model={"config": {"model_type": "nonesuch"}})).encode(), "nonesuch"),
    ],
)
def test_bad_input_is_exit_2_without_a_traceback(cli: Cli, content: bytes, said: str) -> None:
    path = cli.folder / "request.yaml"
    path.write_bytes(content)
    assert cli("plan", str(path)) == 2
    assert said in cli.err
    assert "Traceback" not in cli.err and "internal" not in cli.err
    assert cli("plan", str(path), "--json") == 2
    assert said in cli.json()["detail"]


def test_missing_request_file(cli: Cli) -> None:
    assert cli("plan", str(cli.folder / "none.yaml")) == 2
    assert "No such file" in cli.err


def test_bad_settings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_MAX_SOLVES", "many")
    assert cli("plan", cli.write("request.json", training())) == 2
    assert "MESHWRIGHT_MAX_SOLVES" in cli.err and "many" in cli.err


def test_a_defect_is_exit_3_with_a_report(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("division by zero"))
    monkeypatch.setattr("tempfile.tempdir", str(cli.folder))
    request = cli.write("request.json", training())
    assert cli("plan", request) == 3
    assert len(cli.err.strip().splitlines()) == 1
    report = Path(cli.err.strip().rsplit(" ", 1)[1])
    assert "ZeroDivisionError" in report.read_text()
    assert cli("--debug", "plan", request) == 3
    assert "Traceback" in cli.err
    assert cli("plan", request, "--json") == 3
    assert cli.json()["type"] == "urn:meshwright:problem:internal-error"


def test_ctrl_c_is_exit_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert cli("plan", cli.write("request.json", training())) == 130
    assert cli.out == ""


def test_shard_prints_the_proven_choice(cli: Cli) -> None:
    problem = cli.write("problem.json", SHARDING_PROBLEM)
    assert cli("shard", problem, "--json") == 0
    answer = cli.json()
    # The cheaper strategy of the first operator needs 9 + 4 of 10 while both live.
    assert (answer["solution"], answer["cost"], answer["status"]) == ([0, 0], 7, "optimal")
    assert cli("shard", problem) == 0
    assert "cost 7, proven bound 7" in cli.out


def test_shard_without_an_answer_is_exit_1(cli: Cli) -> None:
    problem = json.loads(json.dumps(SHARDING_PROBLEM))
    problem["problem"]["usage_limit"] = 7
    assert cli("shard", cli.write("problem.json", problem)) == 1
    assert "infeasible" in cli.out


def test_shard_refuses_bad_files(cli: Cli) -> None:
    assert cli("shard", str(cli.folder / "none.json")) == 2
    assert cli("shard", cli.write("problem.json", {"problem": {}})) == 2
    assert cli("shard", cli.write("problem.json", SHARDING_PROBLEM), "--time-limit", "nan") == 2


PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
WRITTEN_WITH_POWERS = sorted(
    {
        found
        for page in PAGES
        for found in re.findall(r"(--[a-z-]+)[ =]([0-9.]+[eE]\+?[0-9]+)", page.read_text(encoding="utf-8"))
    }
)
"""Options that pages write with a power of ten, and their values."""


def test_pages_write_a_work_limit_with_a_power_of_ten() -> None:
    assert {option for option, _ in WRITTEN_WITH_POWERS} == {"--work-limit"}, "another such option needs a test of its own"


@pytest.mark.parametrize("value", [value for _, value in WRITTEN_WITH_POWERS] + ["3000000000", "3_000_000_000", "1.5e8"])
def test_a_work_limit_is_read_as_pages_write_it(cli: Cli, value: str) -> None:
    assert cli("shard", cli.write("problem.json", SHARDING_PROBLEM), "--work-limit", value, "--json") == 0
    assert cli.json()["status"] == "optimal"


@pytest.mark.parametrize("value", ["0", "-1", "1e-3", "0.5", "many", "1e99"])
def test_a_work_limit_that_is_no_count_is_refused_with_one_that_is(cli: Cli, value: str) -> None:
    assert cli("shard", cli.write("problem.json", SHARDING_PROBLEM), f"--work-limit={value}") == 2
    assert value in cli.err and "3e9" in cli.err and "Traceback" not in cli.err


def test_progress_is_drawn_only_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(request: PlanRequest, on_progress: OnProgress) -> Plan:
        on_progress(Progress(done=3, total=10, best=2.0, bound=1.5, note="meshes"))
        return feasible_plan(request)

    monkeypatch.setattr("meshwright.app.cli.commands.planning.solve_here", plan)
    request = cli.write("request.json", training())
    assert cli("plan", request, "--fresh", "--json") == 0
    assert cli.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert cli("plan", request, "--fresh", "--json") == 0
    assert "planning llama-3.1-8b" in cli.err
    assert cli.json()["feasible"]


def test_plan_frontier_sets_the_scope_of_the_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.app.cli.commands.planning.solve_here", lambda request, _: feasible_plan(request))
    request = cli.write("request.json", serving())
    assert cli("plan", request, "--json") == 0
    plain = cli.json()
    assert cli("plan", request, "--frontier", "--json") == 0
    swept = cli.json()
    assert (plain["request"]["search"]["frontier"], swept["request"]["search"]["frontier"]) == ("visited", "swept")
    assert plain["digest"] != swept["digest"] and plain["interactivity"] is None
    assert cli("plan", request, "--frontier", "--no-store") == 0
    # Lines end where the folder's name makes them end.
    assert "request.json--frontier--no-store-oplan.json" in "".join(cli.out.split())


def test_schemas_are_listed_and_printed(cli: Cli) -> None:
    assert cli("schema") == 0
    names = [line.split()[0] for line in cli.out.splitlines()]
    assert {"request", "plan", "model-graph", "cluster"} <= set(names)
    for name in names:
        assert cli("schema", name) == 0
        assert cli.json()["$id"].startswith("urn:meshwright")
    assert cli("schema", "none") == 2


def test_migrate_goes_up_and_down(cli: Cli) -> None:
    assert cli("migrate") == 0
    assert f"is at revision {HEAD_REVISION}" in cli.out
    assert cli("migrate", "--down-to", "base") == 2, "without a terminal nobody can be asked"
    assert "--yes" in cli.err
    assert cli("migrate", "--down-to", "base", "--yes") == 0
    assert "is at revision base" in cli.out
    assert cli("migrate", "--down-to", "nonesuch", "--yes") == 3


def test_export_knows_every_launcher(cli: Cli) -> None:
    assert cli("export", "plan.json", "--to", "nonesuch") == 2
    assert all(name in cli.err for name in targets())


def test_usage_errors_are_exit_2(cli: Cli) -> None:
    assert cli("plan") == 2
    assert cli("plan", "x", "--nonesuch") == 2
    assert cli("nonesuch") == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("plan", "--json"), "REQUEST"),
        (("plan", "x", "--nonesuch", "--json"), "--nonesuch"),
        (("export", "x", "--to", "abacus", "--json"), "abacus"),
        (("nonesuch", "--json"), "nonesuch"),
    ],
)
def test_usage_errors_are_problem_documents_where_json_is_asked_for(cli: Cli, wrong: tuple[str, ...], said: str) -> None:
    assert cli(*wrong) == 2
    assert (cli.json()["type"], cli.json()["status"]) == ("urn:meshwright:problem:invalid-request", 422)
    assert said in cli.json()["detail"]
    assert "Usage" in cli.err


def test_exports_as_a_document(cli: Cli) -> None:
    made, request = exportable(dp=4, tp=2)
    plan = cli.write("plan.json", plan_document(made) | {"request": request_document(request)})
    folder = cli.folder / "launch"
    assert cli("export", plan, "--to", "torchtitan", "--json", "-o", str(folder)) == 0
    document = cli.json()
    assert (document["schema"], document["launcher"]) == ("meshwright.export/1", "torchtitan")
    assert document["command"] in (folder / "launch.sh").read_text()
    assert cli("export", plan, "--to", "torchtitan", "-o", str(folder)) == 0
    assert f"start it: cd {folder} && sh launch.sh" in cli.err.replace("\n", "")
    assert {name: (folder / name).read_text() for name in document["files"]} == document["files"]
    assert document["written"] == [str(folder / name) for name in [*document["files"], "launch.sh"]]
    assert cli("export", plan, "--to", "torchtitan", "--json") == 0
    assert cli.json() == document | {"written": []}
    infeasible = plan_document(infeasible_plan(request)) | {"request": request_document(request)}
    assert cli("export", cli.write("none.json", infeasible), "--to", "torchtitan", "--json") == 1
    assert cli.json()["type"] == "urn:meshwright:problem:infeasible"
    assert cli("export", str(cli.folder / "none.json"), "--to", "torchtitan") == 1
    assert "what would help:" in cli.err and "use at least 6 nodes" in cli.err


def run(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_version_needs_no_command(cli: Cli) -> None:
    assert cli("--version") == 0
    assert (cli.out, cli.err) == (f"meshwright {importlib.metadata.version('meshwright')}\n", "")
    # Whatever stands beside it.
    assert cli("--debug", "--version", "plan") == 0
    assert cli.out.startswith("meshwright ")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_options_without_a_command_load_nothing_heavy(option: str) -> None:
    run = "from meshwright.app.cli.main import main\ntry: main()\n"
    code = f"import sys; {run}finally: print(sorted(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", code, option]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"fastapi", "sqlalchemy", "alembic", "pydantic", "numpy", "scipy", "numba", "ortools", "pulp", "rich", "uvicorn"}
    assert not {name for name in heavy if f"'{name}'" in done.stderr}


@pytest.mark.slow
def test_a_stored_plan_is_shown_without_the_search() -> None:
    code = "import sys, meshwright.app.cli.commands.planning, meshwright.app.launching.exporters; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    search = {"scipy.optimize", "ortools", "pulp", "highspy", "meshwright.solver.training.planner", "meshwright.solver.serving"}
    assert not {name for name in search if f"'{name}'" in done.stdout}


def test_broken_pipe_is_silent(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", "schema", "request"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
def test_serve_answers_and_stops_on_sigterm(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path), "MESHWRIGHT_LOG_LEVEL": "info"}
    process = run("serve", "--port", "0", env=environment)
    assert process.stderr is not None
    deadline = time.monotonic() + 60
    for line in process.stderr:
        assert time.monotonic() < deadline
        if b"Uvicorn running" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), rest
    assert b"Traceback" not in rest


@pytest.mark.slow
def test_the_shell_completes_names_of_launchers() -> None:
    """The program answers what the script of --show-completion asks it: the words that may stand next."""
    asked = {
        **os.environ,
        "COMP_WORDS": "meshwright export plan.json --to ",
        "COMP_CWORD": "4",
        "_MESHWRIGHT_COMPLETE": "complete_bash",
    }
    answered, _ = run(env=asked).communicate(timeout=60)
    assert answered.decode().split() == list(targets())


def test_no_color_holds_for_every_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    request = cli.write("request.json", training())
    cli("plan", request, "--no-store")
    assert "\x1b[3" in cli.out or "\x1b[1;3" in cli.out
    monkeypatch.setenv("NO_COLOR", "")
    cli("--no-color", "plan", request, "--no-store")
    assert "\x1b[3" not in cli.out and "\x1b[1;3" not in cli.out
