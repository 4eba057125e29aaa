"""``hardware``: every device and node of the catalogue is listed and shown; ``--request`` writes what its name stands for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

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


@pytest.mark.parametrize("name", [record.name for record in (*devices(), *node_types())])
def test_every_figure_that_has_a_source_is_shown_with_it(cli: Cli, name: str) -> None:
    assert cli("hardware", "show", name, "--json") == 0
    shown = cli.json()["device"] or cli.json()["node_type"]
    assert cli("hardware", "show", name) == 0
    words = " ".join(cli.out.split())
    assert all(f"] {' '.join(source.split())}" in words for source in shown["sources"].values())


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
