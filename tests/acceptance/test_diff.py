"""``meshwright diff``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command_line import Cli
from tests.support.requests_given import training

ONE_NODE = {"catalog": "dgx-h100", "nodes": 1}
NARROW = {"pp": [1], "cp": [1], "zero_stages": [1], "recompute": ["full"]}


def planned(cli: Cli, name: str, document: dict[str, Any]) -> str:
    plan = str(cli.folder / name)
    cli("plan", cli.write(f"request-{name}", document), "--no-store", "-o", plan)
    return plan


@pytest.fixture
def plans(cli: Cli) -> tuple[str, str]:
    """Plan files of two layouts of one model on one node."""
    layouts = (NARROW | {"tp": [tp]} for tp in (2, 4))
    old, new = (planned(cli, f"{i}.json", training(cluster=ONE_NODE, search=layout)) for i, layout in enumerate(layouts))
    return old, new


def test_the_page_fits_eighty_columns(cli: Cli, plans: tuple[str, str]) -> None:
    assert cli("diff", *plans) == 0
    assert max(map(len, cli.out.splitlines())) <= 80
    for shown in ("tp 2", "tp 4", "optimizer state", "own node", "a device of stage", "at least"):
        assert shown in cli.out
    assert f"Next: meshwright export {plans[1]} --to megatron-lm" in cli.out.replace("\n", "")
    assert cli("diff", plans[0], plans[0]) == 0
    assert "nothing moves" in cli.out


def test_the_document_adds_up(cli: Cli, plans: tuple[str, str]) -> None:
    assert cli("diff", *plans, "--json") == 0
    document = cli.json()
    assert document["schema"] == "meshwright.diff/1"
    assert document["old"] != document["new"]
    received = sum(document[kind]["from_node_bytes"] for kind in ("weights", "optimizer"))
    assert document["moved_bytes"] == pytest.approx(received) == pytest.approx(sum(document["devices"]["to_node_bytes"]))
    assert len(document["devices"]["kept_bytes"]) == 8
    assert document["least_time_s"] == document["fabric_s"] > document["network_s"] == 0


def test_devices_that_are_gone(cli: Cli, plans: tuple[str, str]) -> None:
    assert cli("diff", *plans, "--lost", "0", "--lost", "2-3", "--json") == 0
    some_gone = cli.json()
    assert some_gone["optimizer"]["from_storage_bytes"] > 0
    assert cli("diff", *plans, "--lost", "0-7") == 0
    assert "come from a checkpoint" in " ".join(cli.out.split())
    for wrong in ("8", "3-1", "-1", "a"):
        assert cli("diff", *plans, f"--lost={wrong}") == 2
        assert "0 to 7" in cli.err


@pytest.mark.slow
def test_an_infeasible_plan_is_a_no_and_other_plans_bad_input(cli: Cli, plans: tuple[str, str]) -> None:
    nothing = planned(cli, "nothing.json", training(cluster=ONE_NODE, slo={"max_step_time_s": 1e-3}, search=NARROW))
    assert cli("diff", plans[0], nothing, "--json") == 1
    assert cli.json()["type"] == "urn:meshwright:problem:infeasible"
    other_optimizer = training()["workload"] | {"optimizer": "adamw_8bit"}
    smaller = training(cluster=ONE_NODE, workload=other_optimizer, search=NARROW)
    assert cli("diff", plans[0], planned(cli, "smaller.json", smaller)) == 2
    assert "workload.optimizer" in cli.err
    assert cli("diff", "-", "-") == 2
    assert cli("diff", plans[0], str(cli.folder / "missing.json"), "--json") == 2
    assert json.loads(cli.out)["status"] == 422
