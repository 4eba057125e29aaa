"""``hardware``: every device and node of the catalogue is listed and shown; ``--request`` writes what its name stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.requests.files import FilesBeside, given_request
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.costmodels.hardware import devices, node_types
from tests.support.command_line import Cli
from tests.support.requests_given import training


def cluster_of(asked: Any) -> Any:
    return resolve_request(training(cluster=asked), files=NoFiles()).cluster


def test_all_names_are_listed_and_a_text_narrows_the_list(cli: Cli) -> None:
    assert cli("hardware", "list") == 0
    # A name may be folded over two lines at 80 columns.
    unfolded = "".join(line[:21].strip() for line in cli.out.splitlines())
    assert all(record.name in unfolded for record in (*devices(), *node_types()))
    assert max(map(len, cli.out.splitlines())) <= 80
    assert cli("hardware", "list", "L40S", "--json") == 0
    assert [named["name"] for named in cli.json()["devices"]] == ["l40s-48gb"]
    assert cli("hardware", "list", "no-such-thing") == 1


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", [record.name for record in (*devices(), *node_types())])
def test_every_figure_that_has_a_source_is_shown_with_it(cli: Cli, name: str) -> None:
    assert cli("hardware", "show", name, "--json") == 0
    shown = cli.json()["device"] or cli.json()["node_type"]
    assert cli("hardware", "show", name) == 0
    words = " ".join(cli.out.split())
    assert all(f"] {' '.join(source.split())}" in words for source in shown["sources"].values())


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("node", node_types(), ids=lambda node: node.name)
def test_what_request_writes_is_the_node_of_that_name(cli: Cli, node: Any) -> None:
    assert cli("hardware", "show", node.name, "--request") == 0
    written = cluster_of(yaml.safe_load(cli.out)["cluster"])
    assert written == cluster_of({"groups": [{"name": "mine", "node": node.name, "nodes": 1}]})


def test_an_alias_is_the_device_and_its_usual_node(cli: Cli) -> None:
    assert cli("hardware", "show", "h100") == 0
    assert "Device h100-sxm-80gb" in cli.out and "Node type dgx-h100" in cli.out
    assert cli("hardware", "show", "h100-sxm-80gb", "--request") == 0
    assert "name: dgx-h100" in cli.out


def test_an_unknown_name_is_answered_with_the_nearest(cli: Cli) -> None:
    assert cli("hardware", "show", "h10") == 2
    assert "did you mean 'h100'?" in cli.err
    assert cli("hardware", "show", "h100", "--request", "--json") == 2


SHEET = ("--memory", "48GiB", "--bandwidth", "1.2TB/s", "--bf16", "300TFLOPS", "--fabric", "25GB/s", "--network", "100Gb")


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "meshwright" / "hardware"


def test_a_device_of_ones_own_is_added_and_named(cli: Cli, at_home: Path) -> None:
    assert cli("hardware", "add", "MyChip", *SHEET, "--per-node", "4") == 0, cli.err
    words = " ".join(cli.out.split())
    assert "borrowed from a100_sxm" in words and "inter.latency_s: not given: that of" in words
    for said, devices_of in (("8xMyChip", [4, 4]), ("3 of 4 mychips", [3]), ("2x MyChip-4x", [4, 4])):
        asked = ("plan", "llama-3.2-1b", "--gpus", said, "--batch", "8", "--seq", "128", "--print-request")
        assert cli(*asked) == 0, cli.err
        cluster = given_request(yaml.safe_load(cli.out), files=FilesBeside(cli.folder)).cluster
        assert [group.node.devices_per_node for group in cluster.groups for _ in range(group.nodes)] == devices_of
        assert {group.node.device.calibration for group in cluster.groups} == {"mychip~a100_sxm"}
    assert cli("hardware", "list", "mychip", "--json") == 0
    assert [named["name"] for part in ("devices", "node_types") for named in cli.json()[part]] == ["MyChip", "MyChip-4x"]
    assert cli("hardware", "show", "MyChip") == 0 and "given by the user" in cli.out
    assert cli("plan", "llama-3.2-1b", "--gpus", "4xMyChop", "--batch", "8", "--seq", "128", "--no-store") == 2
    assert "did you mean 'MyChip'?" in cli.err


def test_a_node_type_of_a_file_is_added(cli: Cli, at_home: Path) -> None:
    assert cli("hardware", "show", "dgx-h100", "--request") == 0
    node = yaml.safe_load(cli.out)["cluster"]["groups"][0]["node"]
    device = {**node["device"], "name": "my-h100"}
    (cli.folder / "node.json").write_text(json.dumps({**node, "name": "my-node", "device": device}))
    assert cli("hardware", "add", str(cli.folder / "node.json")) == 0, cli.err
    assert (at_home / "my-node.json").is_file()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("add", "foo"), "add --memory, --bandwidth, --bf16, --fabric, --network"),
        (("add", "h100", *SHEET), "the catalogue has this name"),
        (("add", "../evil", *SHEET), "a name that can't be kept"),
        (("add", "foo", *SHEET[:-1], "100"), "--network has no unit"),
        (("add", "foo", *SHEET[:-1], "0Gb"), "a speed of nothing"),
        (("add", "foo.json", *SHEET), "leave the options out"),
        (("add", "nowhere.json"), "nowhere.json"),
    ],
)
def test_what_can_not_be_added_is_said(cli: Cli, at_home: Path, words: tuple[str, ...], hint: str) -> None:
    assert cli("hardware", *words) == 2
    assert hint in " ".join(cli.err.split()) and "Traceback" not in cli.err
    assert not at_home.exists() or not list(at_home.iterdir())


def test_a_kept_file_that_is_broken_is_named(cli: Cli, at_home: Path) -> None:
    at_home.mkdir(parents=True)
    (at_home / "broken.json").write_text("{")
    assert cli("plan", "llama-3.2-1b", "--gpus", "8xH100", "--batch", "8", "--seq", "128", "--no-store") == 2
    assert "broken.json" in cli.err
