"""``meshwright simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.solver.serving.promise import evaluation
from meshwright.solver.serving.workers import simulation
from tests.support.command_line import Cli
from tests.support.requests_given import serving, training


@pytest.fixture(autouse=True)
def _short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "REQUESTS", 1500)
    monkeypatch.setattr(simulation, "REQUESTS", 1500)


@pytest.fixture
def planned(cli: Cli) -> tuple[str, str]:
    """Paths of a request and of its plan."""
    request, plan = cli.folder / "request.yaml", cli.folder / "plan.json"
    request.write_text(yaml.safe_dump(serving()))
    assert cli("plan", str(request), "--no-store", "-o", str(plan)) == 0
    return str(request), str(plan)


def with_rate(path: Path, rate: float) -> str:
    document: dict[str, Any] = serving()
    document["workload"] = document["workload"] | {"arrivals": {"process": "poisson", "requests_per_s": rate}}
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_the_page_fits_eighty_columns(cli: Cli, planned: tuple[str, str]) -> None:
    request, plan = planned
    assert cli("simulate", request, "--plan", plan) == 0
    assert "Keeps its targets" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80
    for row in ("TTFT", "TPOT", "end to end", "waiting", "decoding", "busy"):
        assert row in cli.out


def test_json_is_one_document(cli: Cli, planned: tuple[str, str]) -> None:
    request, plan = planned
    assert cli("simulate", request, "--plan", plan, "--json") == 0
    document = json.loads(cli.out)
    assert document["schema"] == "meshwright.simulation/1"
    assert document["keeps_targets"]
    assert document["ttft_s"]["p50"]["value"] <= document["ttft_s"]["p95"]["value"]
    assert len(document["timeline"]["busy"]) == len(document["timeline"]["waiting"])


def test_a_missed_target_is_a_no(cli: Cli, planned: tuple[str, str]) -> None:
    assert cli("simulate", with_rate(cli.folder / "busy.yaml", 500.0), "--plan", planned[1]) == 1
    assert "Misses" in cli.out


def test_bad_input_is_said(cli: Cli, planned: tuple[str, str]) -> None:
    trains = cli.folder / "training.yaml"
    trains.write_text(yaml.safe_dump(training()))
    assert cli("simulate", str(trains), "--plan", planned[1]) == 2
    assert "only serving can be simulated" in cli.err
    assert cli("simulate", "-", "--plan", "-") == 2


def test_each_kind_of_workers_is_shown(cli: Cli, planned: tuple[str, str]) -> None:
    request, plan = planned
    document = json.loads(Path(plan).read_text())
    own = {name: document[name] for name in ("devices", "predicted", "axes", "stages", "serving")}
    kinds = [own | {"share": share, "requests_per_s": share} for share in (0.25, 0.75)]
    mixed = cli.folder / "mixed.json"
    mixed.write_text(json.dumps(document | {"kinds": kinds, "axes": None, "stages": [], "serving": None}))
    assert cli("simulate", request, "--plan", str(mixed)) == 0
    text = " ".join(cli.out.split())
    assert "25% of arrivals" in text and "75% of arrivals" in text
    assert cli("simulate", request, "--plan", str(mixed), "--json") == 0
    whole = json.loads(cli.out)
    of_kinds = [kind["ttft_s"]["p95"]["value"] for kind in whole["kinds"]]
    assert min(of_kinds) <= whole["ttft_s"]["p95"]["value"] <= max(of_kinds)
    assert whole["timeline"] is None and all(kind["timeline"] for kind in whole["kinds"])
    assert sum(kind["share"] for kind in whole["kinds"]) == 1.0
