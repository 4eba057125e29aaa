"""Each kind of regression, made for real: the verdict, the message, the cause and the exit code in every format."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.requests.examples import SERVING_REQUEST
from tests.integration.regression.project import LOCK, MODEL, NAME, REQUEST, Edit, Project
from tests.support.command_line import Json


def device(request: Json) -> Json:
    found: Json = request["cluster"]["groups"][0]["node"]["device"]
    return found


def set_memory(bytes_: int) -> Edit:
    return lambda request: device(request).update(memory_bytes=bytes_)


def slow_network(request: Json) -> None:
    request["cluster"]["groups"][0]["node"]["inter"]["bytes_per_s"] = 1e9


def drop_a_node(request: Json) -> None:
    request["cluster"]["groups"][0]["nodes"] = 1


def tighten_slo(request: Json) -> None:
    request["slo"]["min_tokens_per_s"] = 10_000_000


def raise_price(request: Json) -> None:
    device(request)["price_per_hour"] = 5.0


def test_nothing_changed(project: Project) -> None:
    said = project.check()
    assert said.code == 0
    assert said.plan()["verdict"] == "same"
    assert "Passed: 1 same" in said.page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "rule", "message", "cause", "fix"),
    [
        pytest.param(
            set_memory(2 * 2**30),
            "feasibility",
            "no plan fits any more: device memory needs",
            "cluster.groups.pool.node.device.memory_bytes 85,899,345,920 -> 2,147,483,648",
            "put cluster.groups.pool.node.device.memory_bytes back to 85,899,345,920",
            id="less-memory",
        ),
        pytest.param(
            slow_network,
            "throughput",
            "worse",
            "cluster.groups.pool.node.inter.bytes_per_s 100000000000 -> 1000000000: ",
            "put cluster.groups.pool.node.inter.bytes_per_s back to 100000000000",
            id="slow-link",
        ),
        pytest.param(
            drop_a_node,
            "throughput",
            "worse",
            "cluster.groups.pool.nodes 2 -> 1",
            "put cluster.groups.pool.nodes back to 2",
            id="dropped-node",
        ),
        pytest.param(
            tighten_slo,
            "slo",
            "the SLO is not met any more: slo.min tokens per s",
            "slo.min_tokens_per_s 20000 -> 10000000",
            "put slo.min_tokens_per_s back to 20000",
            id="tighter-slo",
        ),
        pytest.param(
            raise_price,
            "cost",
            "cost per million tokens 25% worse",
            "cluster.groups.pool.node.device.price_per_hour 4 -> 5",
            "put cluster.groups.pool.node.device.price_per_hour back to 4",
            id="higher-price",
        ),
    ],
)
def test_a_change_of_the_request_that_makes_the_plan_worse(
    project: Project, edit: Edit, rule: str, message: str, cause: str, fix: str
) -> None:
    project.edit(edit)
    said = project.check()
    assert said.code == 1
    assert said.plan()["verdict"] == "worse"
    finding = said.finding(rule)
    assert finding["severity"] == "error"
    assert message in finding["message"]
    assert finding["cause"].startswith(cause)
    assert fix in finding["fix"]
    assert f"meshwright check {project.folder} --update" in finding["fix"]
    project.update()
    assert project.check().plan()["verdict"] == "same"


def test_added_layers(project: Project) -> None:
    project.write_model(MODEL | {"num_hidden_layers": 20})
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (1, "worse")
    assert said.finding("throughput")["cause"].startswith("model.layers.layer 16 -> 20: compute ")
    assert said.finding("throughput")["fix"].startswith("put model.layers.layer back to 16")


@pytest.mark.slow
def test_a_tighter_latency_target_that_takes_more_devices(project: Project) -> None:
    project.write(SERVING_REQUEST, "serving.plan.yaml")
    project.update()
    project.write(SERVING_REQUEST | {"slo": {"p95_ttft_ms": 1000, "p95_tpot_ms": 10}}, "serving.plan.yaml")
    said = project.check()
    assert said.code == 1
    assert said.finding("devices", "serving.plan.yaml")["message"] == "more devices: 1 -> 2"
    assert said.finding("devices", "serving.plan.yaml")["cause"].startswith("slo.p95_tpot_ms 40 -> 10")
    # On more devices both times fall, which is no fault.
    for about in ("P95 TPOT", "P95 TTFT"):
        assert said.finding("latency", "serving.plan.yaml", about=about)["severity"] == "note"
    assert said.plan()["verdict"] == "same"


@pytest.mark.slow
def test_a_looser_target_that_lets_latency_rise(project: Project) -> None:
    project.write(SERVING_REQUEST | {"slo": {"p95_ttft_ms": 1000, "p95_tpot_ms": 10}}, "serving.plan.yaml")
    project.update()
    project.write(SERVING_REQUEST, "serving.plan.yaml")
    said = project.check()
    assert said.code == 1
    assert said.finding("latency", "serving.plan.yaml")["severity"] == "error"
    assert "P95" in said.finding("latency", "serving.plan.yaml")["message"]


def test_a_new_and_a_deleted_request(project: Project) -> None:
    (project.folder / NAME).rename(project.folder / "renamed.plan.yaml")
    said = project.check()
    assert said.code == 1
    assert said.plan(NAME)["verdict"] == "missing"
    assert said.plan("renamed.plan.yaml")["verdict"] == "new"
    assert said.finding("missing")["fix"].startswith(f"bring {NAME} back")
    project.update()
    assert list(project.lock()["plans"]) == ["renamed.plan.yaml"]


def test_a_bad_request_is_exit_2_and_the_others_are_checked(project: Project) -> None:
    project.write(REQUEST | {"model": {"catalog": "none"}}, "bad.plan.yaml")
    said = project.check()
    assert said.code == 2
    assert said.plan("bad.plan.yaml")["verdict"] == "invalid"
    assert "model.catalog: the catalogue has no such model" in said.finding("invalid", "bad.plan.yaml")["message"]
    assert said.plan()["verdict"] == "same"
    before = project.lock_text()
    assert project.cli("check", str(project.folder), "--update") == 2
    assert project.lock_text() == before


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("figures", [{"tokens_per_s": 1.0}, {}, {"devices": 1, "tokens_per_s": 0.0, "step_time_s": 0.0}])
def test_an_entry_edited_by_hand(project: Project, figures: Json) -> None:
    project.edit_lock(lambda lock: lock["plans"][NAME].update(figures=figures))
    said = project.check()
    assert said.code == 1
    assert said.plan()["verdict"] == "edited"
    assert said.finding("edited")["message"] == "the locked plan was edited by hand: its seal does not fit what it holds"
    project.update()
    assert project.check().code == 0


def truncate(text: str) -> str:
    return text[: len(text) // 2]


def conflict(text: str) -> str:
    return f"<<<<<<< ours\n{text}=======\n{text}>>>>>>> theirs\n"


def other_version(text: str) -> str:
    return text.replace("plans-lock/1", "plans-lock/2")


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("corrupt", [truncate, conflict, other_version, lambda text: ""])
def test_a_corrupt_lock_is_exit_2_and_is_not_overwritten(project: Project, corrupt: Any) -> None:
    (project.folder / LOCK).write_text(corrupt(project.lock_text()))
    before = project.lock_text()
    said = project.check()
    assert said.code == 2
    assert said.plan(LOCK)["verdict"] == "invalid"
    assert said.finding("invalid", LOCK)["message"].startswith("the lock can't be read: ")
    assert f"meshwright check {project.folder} --update" in said.finding("invalid", LOCK)["fix"]
    assert project.cli("check", str(project.folder), "--update") == 2
    assert project.lock_text() == before


@pytest.mark.slow
def test_paths_are_those_of_the_repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.edit(tighten_slo)
    monkeypatch.chdir(project.folder)
    assert project.cli("check", ".", "--github") == 1
    assert f"::error file={NAME},line=1," in project.cli.out


def test_a_missing_lock_says_how_to_make_it(project: Project) -> None:
    (project.folder / LOCK).unlink()
    said = project.check()
    assert said.code == 2
    assert said.finding("invalid", LOCK)["fix"] == f"make it with: meshwright check {project.folder} --update"


def test_a_gain_passes_and_is_told(project: Project) -> None:
    project.edit(lambda request: device(request).update(price_per_hour=2.0))
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (0, "better")
    assert said.finding("cost")["message"].startswith("cost per million tokens 50% better")


@pytest.mark.slow
def test_a_request_that_becomes_feasible_passes(project: Project) -> None:
    project.edit(set_memory(2 * 2**30))
    project.update()
    assert project.check().plan()["verdict"] == "same"
    project.write(REQUEST)
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (0, "better")
    assert said.finding("feasibility")["message"] == "a plan fits where none did"


def test_sources_of_figures_change_nothing(project: Project) -> None:
    project.edit(lambda request: device(request).update(sources={"memory_bytes": "a data sheet"}))
    assert project.check().plan()["verdict"] == "same"


def test_a_new_solver_version_is_shown_though_nothing_got_worse(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.app.requests.digests.SOLVER_VERSION", "next")
    monkeypatch.setattr("meshwright.app.regression.inputs.SOLVER_VERSION", "next")
    said = project.check()
    assert (said.code, said.plan()["verdict"]) == (0, "changed")
    (change,) = said.report["meshwright_changes"]
    assert change.startswith("version.solver ") and change.endswith("-> next")
    assert change in said.page and change in said.markdown.replace("\\", "")


@pytest.mark.parametrize("arguments", [["nowhere"], ["."], [".", "--json", "--github"], [".", "--junit", "no/such/folder.xml"]])
def test_bad_use_is_exit_2(project: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    empty = project.folder.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert project.cli("check", *arguments) == 2
