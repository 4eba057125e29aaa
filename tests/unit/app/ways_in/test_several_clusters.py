"""One question asked of several clusters: what words name them, and the table of their answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.several_clusters import NODES, clusters_in, usual_nodes
from meshwright.costmodels.errors import ClusterError, WorkloadError
from meshwright.costmodels.hardware import devices
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.support.command_line import Cli
from tests.support.fakes import feasible_plan, infeasible_plan
from tests.support.requests_given import TINY_CONFIG, tiny_graph

TRAINED = ("graph.json", "--train", "--batch", "8", "--seq", "128")


@pytest.fixture(autouse=True)
def folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a folder with a small model."""
    monkeypatch.chdir(cli.folder)
    Path("graph.json").write_text(json.dumps(tiny_graph()))


def answer_with(monkeypatch: pytest.MonkeyPatch, plan: Callable[[PlanRequest], Plan]) -> None:
    monkeypatch.setattr("meshwright.app.cli.commands.planning.solve_here", lambda request, _: plan(request))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("8xH100", ("8xH100",)),
        ("8xH100,8xH200, 16xA100", ("8xH100", "8xH200", "16xA100")),
        ("8xH100, 8xH100,", ("8xH100",)),
        ("8xH100,128xA100", ("8xH100", "128xA100")),
        ("1,024xH100", ("1,024xH100",)),
        ("1,024xH100, 8xMI300X", ("1024xH100", "8xMI300X")),
        ("3x8xH100@400Gb,8xH100 + 8xA100", ("3x8xH100@400Gb", "8xH100 + 8xA100")),
        ("2 nodes, 8x A100 40GB each", ("2 nodes, 8x A100 40GB each",)),
        ("2 nodes, 8x A100 40GB each, InfiniBand HDR 200Gb", ("2 nodes, 8x A100 40GB each, InfiniBand HDR 200Gb",)),
        ("8xH100, 512GB host memory", ("8xH100, 512GB host memory",)),
        ("no cluster, none either", ("no cluster, none either",)),
        ("", ("",)),
    ],
)
def test_commas_part_what_is_a_cluster_by_itself(said: str, named: tuple[str, ...]) -> None:
    assert clusters_in(said) == named


def test_a_part_that_is_no_cluster_is_named() -> None:
    with pytest.raises(ClusterError, match="Commas part clusters where each part is one by itself, and '8xFoo' is none"):
        clusters_in("8xH100,8xFoo,8xA100")


def test_a_users_own_device_is_a_cluster_too() -> None:
    own = cluster_of_words("8xH100").groups[0].node
    assert clusters_in("4xmine,8xH100", {"mine": own}) == ("4xmine", "8xH100")


def test_usual_nodes_are_those_with_a_price_or_measurements_of_their_own() -> None:
    nodes = usual_nodes()
    assert {each.name for each in devices() if each.price_per_hour} <= {node.device.name for node in nodes}
    assert all(node.device.price_per_hour or "~" not in node.device.calibration for node in nodes)
    prices = [node.device.price_per_hour and node.device.price_per_hour * node.devices_per_node for node in nodes]
    known = [price for price in prices if price]
    assert prices == [*sorted(known), *[None] * (len(nodes) - len(known))]
    for node in nodes:
        assert [(group.node, group.nodes) for group in cluster_of_words(f"2x {node.name}").groups] == [(node, 2)]


def test_each_row_is_the_plan_of_its_cluster_alone(cli: Cli) -> None:
    assert cli("plan", *TRAINED, "--gpus", "8xA100,2xH100,8xH100", "--json") == 0, cli.err
    table = cli.json()
    assert table["schema"] == "meshwright.clusters/1" and table["not_tried"] == []
    rows = table["clusters"]
    times = [row["certificate"]["objective"] for row in rows]
    assert times == sorted(times) and {row["cluster"] for row in rows} == {"8xA100", "2xH100", "8xH100"}
    assert cli.err.splitlines() == [
        f"meshwright: planning on {words} ({number} of 3)" for number, words in enumerate(("8xA100", "2xH100", "8xH100"), 1)
    ]
    for row in rows:
        assert cli("plan", *TRAINED, "--gpus", row["cluster"], "--json") == 0
        alone = cli.json()
        assert {name: alone[name] for name in ("digest", "devices", "predicted", "certificate")}.items() <= row.items()
    assert cli("plan", *TRAINED, "--gpus", "8xA100,2xH100,8xH100") == 0
    words = cli.out.split()
    assert f"meshwright export {rows[0]['digest'][:19]} --to " in " ".join(words)
    assert max(map(len, cli.out.splitlines())) <= 80


def test_price_of_an_hour_is_that_of_the_devices_used(cli: Cli) -> None:
    assert cli("plan", *TRAINED, "--gpus", "8xH100,8xA800", "--no-store", "--json") == 0, cli.err
    by_cluster = {row["cluster"]: row for row in cli.json()["clusters"]}
    price = next(each.price_per_hour for each in devices() if each.name == "h100-sxm-80gb")
    assert price is not None
    assert by_cluster["8xH100"]["usd_per_hour"] == pytest.approx(by_cluster["8xH100"]["devices"] * price)
    assert by_cluster["8xA800"]["usd_per_hour"] is None


def test_a_run_has_its_days_and_price_in_place_of_those_of_tokens(cli: Cli) -> None:
    assert cli("plan", *TRAINED, "--gpus", "8xH100,8xA800", "--tokens", "1B", "--no-store") == 0, cli.err
    (head,) = [line for line in cli.out.splitlines() if line.strip().startswith("cluster ")]
    assert head.split() == ["cluster", "devices", "tokens/s", "step", "OOM", "USD/h", "run", "USD", "gap"]
    assert cli("plan", *TRAINED, "--gpus", "8xH100", "--tokens", "1B", "--no-store") == 0
    assert "A run of 1.00 billion tokens takes" in " ".join(cli.out.split())


def test_a_serving_table_has_percentiles_and_fits_eighty_columns(cli: Cli) -> None:
    Path("config.json").write_text(json.dumps(TINY_CONFIG))
    served = ("config.json", "--serve", "--isl", "100", "--osl", "10", "--rate", "4")
    given = ("2x8xMI300X@400Gb,8xH100", "--objective", "cost", "--ttft-p95", "1s")
    assert cli("plan", *served, "--gpus", *given, "--no-store") == 0, cli.err
    assert max(map(len, cli.out.splitlines())) <= 80
    (head,) = [line for line in cli.out.splitlines() if line.strip().startswith("cluster ")]
    assert head.split() == ["cluster", "devices", "req/s", "TTFT", "TPOT", "USD/h", "USD/M", "tok", "gap"], cli.out
    lines = cli.out.splitlines()
    below = lines[lines.index(head) + 2 :]
    assert (below[0].split()[0], below[1].split()[0]) == ("2x8xMI300X@400Gb", "8xH100"), "an MI300X is cheaper by the hour"


def test_a_cluster_that_cannot_be_asked_is_a_row_unless_none_can(cli: Cli) -> None:
    by_cost = (*TRAINED, "--no-store", "--objective", "cost", "--gpus")
    assert cli("plan", *by_cost, "8xA800,8xH100") == 0, cli.err
    assert "  8xA800: the objective cost needs a price of the device" in cli.out
    assert cli("plan", *by_cost, "8xA800,8xA800@400Gb") == 2
    assert "price_per_hour" in cli.err and cli.out == ""
    assert cli("plan", *TRAINED, "--no-store", "--gpus", "8xH100,9999999xH100") == 0, cli.err
    assert "  9999999xH100: too many devices" in cli.out


def test_more_nodes_are_not_asked_where_one_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {node.name for node in usual_nodes() if node.name.startswith("h")}

    def plan(request: PlanRequest) -> Plan:
        if request.cluster.groups[0].node.name in refused:
            raise WorkloadError("not here")
        return infeasible_plan(request)

    answer_with(monkeypatch, plan)
    assert cli("plan", *TRAINED, "--no-store", "--json") == 1
    words = {row["cluster"] for row in cli.json()["clusters"]}
    assert words == {f"{1 if node.name in refused else NODES[-1]}x {node.name}" for node in usual_nodes()}


def test_ties_are_by_name_and_clusters_without_a_plan_come_last(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(request: PlanRequest) -> Plan:
        return infeasible_plan(request) if request.cluster.n_devices == 8 else feasible_plan(request)

    answer_with(monkeypatch, plan)
    assert (
        cli("plan", *TRAINED, "--gpus", "8xA100,8xH200,4xH200,4xH100", "--json", "-o", "table.json", "--csv", "table.csv") == 0
    )
    table = cli.json()
    assert [row["cluster"] for row in table["clusters"]] == ["4xH100", "4xH200", "8xA100", "8xH200"]
    assert json.loads(Path("table.json").read_text()) == table
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_text())))
    assert [row["cluster"] for row in rows] == [row["cluster"] for row in table["clusters"]]
    assert cli("plan", *TRAINED, "--gpus", "8xA100,8xH200", "--no-store") == 1
    assert "No cluster has a plan" in cli.out and "Next:" not in cli.out and "stored" not in cli.out


def test_without_devices_the_usual_nodes_grow_until_they_have_a_plan(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def plan(request: PlanRequest) -> Plan:
        (group,) = request.cluster.groups
        asked.append((group.node.name, group.nodes))
        enough = 1 if group.node.device.name.startswith("h100") else 4
        return feasible_plan(request) if group.nodes >= enough else infeasible_plan(request)

    answer_with(monkeypatch, plan)
    assert cli("plan", *TRAINED, "--no-store", "--json") == 0, cli.err
    names = [node.name for node in usual_nodes()]
    large = [node.name for node in usual_nodes() if not node.device.name.startswith("h100")]
    assert asked == [*((name, 1) for name in names), *((name, count) for count in NODES[1:3] for name in large)]
    assert {row["cluster"] for row in cli.json()["clusters"]} == {f"{4 if name in large else 1}x {name}" for name in names}


def test_the_time_for_usual_nodes_ends_and_what_is_left_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.app.cli.commands.clusters.USUAL_NODES_S", 0.0)
    assert cli("plan", *TRAINED, "--no-store") == 0, cli.err
    left = len(usual_nodes()) - 1
    assert f"Not tried, for want of time: {left} clusters (1x " in cli.out


@pytest.mark.parametrize("option", [("--explain", "up"), ("--trials", "2"), ("--next",), ("--html", "plan.html"), ("-o", ".")])
def test_options_of_one_plan_are_refused_before_planning(cli: Cli, option: tuple[str, ...]) -> None:
    assert cli("plan", *TRAINED, "--gpus", "8xH100,8xA100", *option) == 2
    assert ("directory" if option[0] == "-o" else "these options are of one plan") in cli.err and "planning on" not in cli.err


def test_a_wrong_model_is_said_once(cli: Cli) -> None:
    assert cli("plan", "qwen38b", "--gpus", "8xH100,8xA100", "--batch", "8", "--seq", "128") == 2
    assert cli.err.count("did you mean 'qwen3-8b'?") == 1 and "planning on" not in cli.err


def test_requests_of_several_clusters_are_a_document_each(cli: Cli) -> None:
    assert cli("plan", *TRAINED, "--gpus", "8xH100,8xA100", "--print-request") == 0
    assert [document["cluster"] for document in yaml.safe_load_all(cli.out)] == ["8xH100", "8xA100"]
    assert cli("init", *TRAINED, "--gpus", "8xH100,8xA100") == 2
    assert "a request has one cluster" in cli.err
