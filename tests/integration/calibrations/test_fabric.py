"""``calibrate fabric``: the network between nodes measured for real, kept as a calibration, and used by plans."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.app.evidence.measuring.fabric import fit_measurements, script_text
from meshwright.app.evidence.measuring.fabric_script import members_of, shapes_of
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from tests.support.command_line import Cli
from tests.support.fabric import measurements
from tests.support.requests_given import training

TWO_NODES = {"groups": [{"name": "a", "node": "dgx-h100", "nodes": 2}]}


def test_the_groups_of_every_shape_hold_each_rank_at_most_once() -> None:
    for nodes, devices in ((2, 1), (3, 4), (8, 8)):
        for shape in shapes_of(nodes, devices):
            groups = members_of(shape, nodes, devices)
            held = [rank for group in groups for rank in group]
            assert len(held) == len(set(held)) and set(held) <= set(range(nodes * devices))
            assert all(len(group) == shape.nodes * shape.ranks_per_node for group in groups)
            assert len(groups) == nodes // shape.nodes * shape.groups_per_node


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_the_script_measures_processes_joined_by_gloo(tmp_path: Path, cli: Cli) -> None:
    """Two nodes of one process on this machine, each started as torchrun starts it; it takes the seconds that PyTorch's import
    does."""
    script, output = tmp_path / "fabric.py", tmp_path / "fabric.json"
    assert cli("calibrate", "fabric", "-o", str(script)) == 0
    assert script.read_text(encoding="utf-8") == script_text()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(script), "-o", str(output), "--largest", "1048576", "--repeat-ms", "0.1", "--backend", "gloo"],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    measured = json.loads(output.read_text(encoding="utf-8"))
    assert {row["collective"] for row in measured["rows"]} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv",
    }  # fmt: skip
    found = fit_measurements(measured, Cluster((NodeGroup("a", node_type("gh200-1x"), 2),)), "loopback")
    assert all(curve.share <= 1.0 for by_shape in found.fitted.curves.values() for curve in by_shape.values())
    assert cli("calibrate", "fabric", "--import", str(output), "--cluster", "2xgh200-1x") == 0
    assert "Stored as fabric.2xgh200-1x@1" in cli.out


@pytest.mark.slow
def test_a_measured_network_is_kept_and_named_by_plans(cli: Cli, tmp_path: Path) -> None:
    file, request = tmp_path / "fabric.json", tmp_path / "request.yaml"
    file.write_text(json.dumps(measurements(2)), encoding="utf-8")
    request.write_text(json.dumps(training(cluster=TWO_NODES)), encoding="utf-8")
    assert cli("plan", str(request), "--full") == 0
    assert "not measured, prior of infiniband" in " ".join(cli.out.split())
    assert cli("calibrate", "fabric", "--import", str(file), "--cluster", "2x8xH100", "--json") == 0
    assert (cli.json()["key"], cli.json()["version"]) == ("fabric.2x8xH100", 1)
    assert cli("calibrate", "fabric", "--import", str(file), "--cluster", "2x8xH100") == 0
    assert "Stored already as fabric.2x8xH100@1" in cli.out
    file.write_text(json.dumps(measurements(2, share=0.4)), encoding="utf-8")
    assert cli("calibrate", "fabric", "--import", str(file), "--cluster", "2x8xH100") == 0
    assert "Stored as fabric.2x8xH100@2" in cli.out
    assert cli("calibrate", "diff", "fabric.2x8xH100@1", "fabric.2x8xH100@2", "--json") == 0
    changes = {change["where"]: change["ratio"] for change in cli.json()["constants"]}
    assert changes["curves.all_reduce.8.share"] == pytest.approx(0.5, rel=0.01)
    assert cli("calibrate", "show", "fabric.2x8xH100") == 0
    assert "the network between nodes" in cli.out
    steps = []
    for version in (1, 2):
        assert cli("plan", str(request), "--calibration", f"fabric.2x8xH100@{version}", "--json") == 0
        plan = cli.json()
        steps.append(plan["predicted"]["step_time_s"])
        (used,) = [each for each in plan["calibration"] if each["id"].endswith("/network")]
        assert used["id"].startswith("fabric.2x8xH100@sha256:") and "measured" in used["basis"]
    assert steps[0] < steps[1]


def test_a_network_measured_on_other_nodes_is_refused(cli: Cli, tmp_path: Path) -> None:
    file, request = tmp_path / "fabric.json", tmp_path / "request.yaml"
    file.write_text(json.dumps(measurements(2, node_bytes_per_s=200e9)), encoding="utf-8")
    request.write_text(json.dumps(training(cluster=TWO_NODES)), encoding="utf-8")
    assert cli("calibrate", "fabric", "--import", str(file), "--cluster", "2x8xA100") == 0
    assert cli("plan", str(request), "--calibration", "fabric.2x8xA100") == 2
    assert "measured on nodes of another network" in cli.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "neither"),
        (("-o", "x.py", "--import", "y.json"), "both"),
        (("--import", "y.json"), "--cluster"),
        (("--import", "missing.json", "--cluster", "2x8xH100"), "missing.json"),
    ],
)
def test_commands_that_say_too_little(cli: Cli, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    given = [str(tmp_path / option) if option.endswith((".py", ".json")) else option for option in options]
    assert cli("calibrate", "fabric", *given) == 2
    assert said in cli.err


def test_a_registered_cluster_follows_its_measured_network(client: httpx.Client) -> None:
    client.put("/v1/clusters/prod", json={"catalog": "dgx-h100", "nodes": 2})
    on_prod = training(cluster={"name": "prod"})
    prior = client.post("/v1/plans", json=on_prod).json()
    cluster = Cluster((NodeGroup("dgx-h100", node_type("dgx-h100"), 2),))
    document: dict[str, Any] = dict(fit_measurements(measurements(2), cluster, "prod").calibration.document)
    added = client.post("/v1/calibrations", json=document).json()
    assert (added["key"], added["version"], added["stale"]) == ("fabric.prod", 1, 1)
    (stale,) = client.get("/v1/questions", params={"calibration": "fabric.prod", "stale": True}).json()["questions"]
    assert stale["plan"] == prior["digest"]
    measured = client.post("/v1/plans", json=on_prod).json()
    assert measured["request"]["calibrations"] == [document]
    assert measured["request"]["cluster"]["groups"][0]["node"]["network"] == added["name"]
    # The same name on nodes of another network: what was measured does not stand for it.
    client.put("/v1/clusters/prod", json={"catalog": "dgx-a100", "nodes": 2})
    other = client.post("/v1/plans", json=on_prod).json()
    assert "calibrations" not in other["request"]
    assert client.post("/v1/calibrations", json={**document, "curves": {}}).status_code == 422
