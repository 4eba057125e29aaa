"""Benchmarks of a serving deployment as runs: latencies of the next plan, its promise, versions and staleness."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.app.base.settings import Settings
from meshwright.costmodels.serving.engine_profile import ENGINE_VLLM
from tests.support.command_line import Cli
from tests.support.requests_given import serving

ASKED = serving(
    cluster={"catalog": "dgx-h100", "nodes": 1},
    workload={
        "kind": "serving",
        "arrivals": {"process": "poisson", "requests_per_s": 2.0},
        "prompt_tokens": {"fixed": 1000},
        "output_tokens": {"fixed": 50},
    },
    slo={"p95_ttft_ms": 400.0, "p95_tpot_ms": 40.0},
    objective="devices",
    search={"tp": [1, 2], "pp": [1], "dp": [1]},
)


def test_the_story_of_a_deployment(cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    request, plan = cli.write("request.json", ASKED), str(cli.folder / "plan.json")

    def plan_again(*options: str) -> dict[str, Any]:
        assert cli("plan", request, "-o", plan, "--json", *options) == 0, cli.err
        return cli.json()

    def spread(figures: dict[str, Any]) -> float:
        return float(figures["tpot_promised_s"] / figures["tpot_p95_s"])

    first = plan_again()
    said = first["predicted"]
    assert "calibrations" not in first["request"]
    result = {
        "output_throughput": 100.0,
        "p95_ttft_ms": 1e3 * said["ttft_p95_s"] + 80.0,
        "p95_tpot_ms": 1.3e3 * said["tpot_p95_s"],
    }
    log = cli.write("bench.json", result)
    assert cli("observe", plan, "--log", log) == 0, cli.err
    assert "@1" in cli.out

    second = plan_again()
    told = second["predicted"]
    assert told["tpot_p95_s"] > 1.08 * said["tpot_p95_s"] and told["ttft_p95_s"] > said["ttft_p95_s"] + 0.01
    assert spread(told) < spread(said)
    assert "1 measured run of this engine" in told["bands"]["tpot_p95_s"]["basis"]
    (learned,) = second["request"]["calibrations"]
    assert learned["key"].endswith(".vllm") and learned["latency"]["ttft"]["outside_s"] > ENGINE_VLLM.outside_s
    # The next run is compared with what was predicted before any: the same figures as the first's.
    assert cli("observe", plan, "--ttft-p95", f"{result['p95_ttft_ms'] / 1e3:.9f}", "--label", "again") == 0, cli.err
    assert cli("calibrate", "show", learned["key"]) == 0 and "ms more than simulated" in cli.out
    assert cli("calibrate", "diff", f"{learned['key']}@1", learned["key"]) == 0 and "latency." in cli.out
    ignoring = plan_again("--ignore-runs")
    assert ignoring["digest"] == first["digest"] and "stale" in cli.err
    third = plan_again()
    assert third["digest"] != second["digest"]
    assert third["request"]["calibrations"][0]["latency"]["ttft"] == pytest.approx(learned["latency"]["ttft"], rel=1e-3)
    assert cli("predict", request, "--plan", plan, "--json") == 0


@pytest.mark.slow
def test_a_target_that_runs_say_is_missed_is_no_longer_met(
    cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    one = ASKED | {"search": {"tp": [1], "pp": [1], "dp": [1]}}
    request, plan = cli.write("request.json", one), str(cli.folder / "plan.json")
    assert cli("plan", request, "-o", plan, "--json") == 0, cli.err
    tpot_s = cli.json()["predicted"]["tpot_p95_s"]
    tight = cli.write("tight.json", one | {"slo": {"p95_tpot_ms": 1.4e3 * tpot_s}})
    assert cli("plan", tight, "--json") == 0, cli.err
    assert cli("observe", plan, "--tpot-p95", f"{1.6 * tpot_s:.9f}") == 0, cli.err
    cli("plan", tight, "--json")
    answer = cli.json()
    assert not answer["feasible"] and answer["reason"]["constraint"] == "p95_tpot"


@pytest.mark.parametrize(
    "change",
    [
        {"latency": None},
        {"latency": {"ttft": {}, "tpot": {}, "runs": 1}},
        {"latency": {"ttft": {"outside_s": -1.0, "scale": 1.0, "shared_sigma": 0.1, "own_sigma": 0.1}, "runs": 1}},
    ],
)
def test_documents_that_no_run_taught(cli: Cli, change: dict[str, Any]) -> None:
    law = {"outside_s": 0.05, "scale": 1.0, "shared_sigma": 0.1, "own_sigma": 0.1}
    document = {
        "schema": "meshwright.run-calibration/1",
        "key": "runs.here.vllm",
        "cluster": "here",
        "latency": {"ttft": law, "tpot": law, "runs": 1},
        "provenance": {"made up": "1 runs"},
        "samples": {"rows": 1, "digest": "sha256:" + "0" * 64},
    }
    latency = change["latency"]
    broken = document | {"latency": latency if latency is None or "tpot" in latency else latency | {"tpot": law}}
    path = cli.write("broken.json", broken)
    request = cli.write("request.json", ASKED | {"calibrations": [path]})
    assert cli("plan", request, "--json") != 0
    assert "this is no calibration learned from runs" in cli.err
    path = cli.write("good.json", json.loads(json.dumps(document)))
    cli("plan", cli.write("request.json", ASKED | {"calibrations": [path]}), "--json")
    assert "learned from runs of other hardware" in cli.err


BENCHMARK = """============ Serving Benchmark Result ============
Successful requests:                     1000
Request rate configured (RPS):           {rate:.2f}
Total input tokens:                      1000000
Total generated tokens:                  50000
Output token throughput (tok/s):         {tokens:.2f}
P95 TTFT (ms):                           {ttft:.3f}
P95 TPOT (ms):                           {tpot:.3f}
==================================================
"""


def test_a_slower_run_of_a_plan_for_throughput_makes_no_prediction_faster(
    cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    request, plan = cli.write("request.json", ASKED | {"slo": {}, "objective": "throughput"}), str(cli.folder / "plan.json")
    at_asked = cli.write("asked.json", ASKED | {"slo": {}})

    def predicted() -> dict[str, float]:
        assert cli("predict", at_asked, "--plan", plan, "--json") == 0, cli.err
        figures: dict[str, float] = cli.json()["predicted"]
        return figures

    assert cli("plan", request, "-o", plan, "--json") == 0, cli.err
    highest = cli.json()["predicted"]["tokens_per_s"] / 50
    before = predicted()
    measured = {"ttft": 1.4e3 * before["ttft_p95_s"], "tpot": 1.2e3 * before["tpot_p95_s"]}
    log = cli.folder / "bench.log"
    log.write_text(BENCHMARK.format(rate=2.0, tokens=100.0, **measured))
    assert cli("observe", plan, "--log", str(log)) == 0, cli.err
    assert cli("plan", request, "-o", plan) == 0, cli.err
    page = " ".join(cli.out.split())
    assert "Corrected by runs." in page and "by 1 measured run of this engine" in page
    after = predicted()
    for name in ("ttft", "tpot"):
        assert before[f"{name}_p95_s"] < after[f"{name}_p95_s"] < measured[name] / 1e3
    # Also measured at the highest rate, as a log, or as figures that say so by their tokens; at no other unless it is named.
    log.write_text(BENCHMARK.format(rate=highest, tokens=50 * highest, ttft=800.0, tpot=30.0))
    assert cli("observe", plan, "--log", str(log), "--dry-run", "--json") == 0, cli.err
    assert cli.json()["requests_per_s"] == pytest.approx(highest, rel=0.01)
    told = ("observe", plan, "--tpot-p95", "20ms", "--dry-run")
    assert cli(*told, "--tokens-per-s", f"{49 * highest:.3f}") == 0, cli.err
    assert cli(*told, "--tokens-per-s", f"{20 * highest:.3f}") == 2 and "--rate" in cli.err
    assert cli(*told, "--tokens-per-s", f"{20 * highest:.3f}", "--rate", f"{0.4 * highest:.3f}") == 0, cli.err
    assert cli(*told, "--rate", f"{9 * highest:.3f}") == 2 and "nothing is predicted at this load" in cli.err
