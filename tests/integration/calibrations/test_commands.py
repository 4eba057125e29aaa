"""``calibrate`` as a person uses it: measurements to a stored calibration, to a plan that rests on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.evidence.measuring.sample_files import write_samples
from meshwright.app.requests.calibrations import calibration_name, read_calibration_document
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.costmodels.fitting.samples import Samples
from tests.support.command_line import Cli
from tests.support.requests_given import training
from tests.unit.costmodels.measurements import toy_samples

Json = dict[str, Any]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Measurements of the made-up device."""
    path = tmp_path / "toy.csv"
    write_samples(path, toy_samples())
    return path


@pytest.fixture
def faster(tmp_path: Path) -> Path:
    """Measurements of the same device, twice as fast in streams."""
    samples = toy_samples()
    values = {name: getattr(samples, name) for name in Samples.__dataclass_fields__}
    path = tmp_path / "faster.csv"
    times = samples.time_s / (1.0 + (samples.kind == "stream"))
    write_samples(path, Samples(**{**values, "time_s": times}))
    return path


@pytest.mark.slow
def test_measurements_become_a_stored_calibration(cli: Cli, measured: Path, faster: Path) -> None:
    assert cli("calibrate", "fit", str(measured), "--cores", "2", "--folds", "2", "--json") == 0
    (first,) = cli.json()["calibrations"]
    assert (first["key"], first["version"], first["new"]) == ("toy", 1, True)
    scores = {score["name"]: score for score in first["scores"]}
    assert scores["collectives"]["target"] == {"median": 0.05, "p95": 0.15, "holds": True}
    assert cli("calibrate", "fit", str(measured), "--cores", "2", "--folds", "2") == 0
    assert "Stored already as toy@1" in cli.out
    assert cli("calibrate", "import", str(faster), "--folds", "2") == 0
    assert "Stored as toy@2" in cli.out
    assert "--calibration toy@2" in cli.out
    assert cli("calibrate", "list", "--json") == 0
    assert [row["version"] for row in cli.json()["calibrations"]] == [2, 1]
    assert cli("calibrate", "show", "toy@1", "--json") == 0
    document = cli.json()
    assert calibration_name(document) == first["name"]
    assert read_calibration_document(document).name == first["name"]
    for reference in ("toy", "toy@2", first["name"][: len("toy@sha256:") + 8]):
        assert cli("calibrate", "show", reference) == 0
        assert "collectives" in cli.out
    assert cli("calibrate", "diff", "toy@1", "toy@2", "--json") == 0
    constants = {change["where"]: change["ratio"] for change in cli.json()["constants"]}
    assert "kernels.memory_bound.stream.curve.launch_s" in constants
    assert not any("norm.curve.launch_s" in where for where in constants)
    assert constants["kernels.memory_bound.stream.curve.launch_s"] == pytest.approx(0.5, rel=0.05)
    assert cli("calibrate", "diff", "toy@1", "toy@1") == 0
    assert "the same" in cli.out


def test_nothing_is_kept_when_so_asked(cli: Cli, measured: Path, tmp_path: Path) -> None:
    assert cli("calibrate", "fit", str(measured), "--folds", "2", "--no-store") == 0
    assert cli("calibrate", "import", str(measured), "-o", str(tmp_path / "copy.csv.gz")) == 0
    assert (tmp_path / "copy.csv.gz").exists()
    assert cli("calibrate", "list") == 0
    assert "No calibration is stored" in cli.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "toy"), "no calibration is stored"),
        (("show", "toy@sha256:00"), "no calibration is stored"),
        (("diff", "a", "b"), "no calibration is stored"),
        (("fit", "absent.csv"), "can't be read"),
        (("fit", "{measured}", "--device", "h100_sxm"), "no measurements of this device"),
        (("fit", "{measured}", "--node", "dgx-9"), "unknown node type"),
        (("profile", "x", "--kind", "nothing", "-o", "x.csv"), "unknown kind"),
    ],
)
def test_what_can_not_be_done_ends_with_2(cli: Cli, measured: Path, arguments: tuple[str, ...], said: str) -> None:
    assert cli("calibrate", *(argument.format(measured=measured) for argument in arguments)) == 2
    assert said in cli.err


def test_without_the_package_import_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.app.evidence.measuring.aiconfigurator.find_spec", lambda name: None)
    assert cli("calibrate", "import", "--device", "h100_sxm") == 2
    assert "pip install 'meshwright[import]'" in cli.err


def toy_cluster(calibration: str = "toy") -> Json:
    link = {"name": "link", "bytes_per_s": 5e9, "latency_s": 1e-6}
    peaks = {"peak_flops": {"fp32": 5e11}, "memory_bytes_per_s": 8e10}
    device = {"name": "toy", "memory_bytes": 2**37, "calibration": calibration, **peaks}
    node = {"name": "toy-node", "device": device, "devices_per_node": 4, "intra": link, "inter": link}
    return {"groups": [{"name": "toys", "node": node, "nodes": 1}]}


def request(**changes: Any) -> Json:
    workload = {"kind": "training", "global_batch": 4, "seq_len": 128, "precision": "fp32"}
    return training(cluster=toy_cluster(), workload=workload, **changes)


@pytest.mark.slow
def test_plans_rest_on_the_calibration_that_they_name(cli: Cli, measured: Path, faster: Path) -> None:
    assert cli("calibrate", "fit", str(measured), "--folds", "2") == 0
    path = cli.write("request.json", request())
    assert cli("plan", path) == 2
    assert "no kernel calibration of this name" in cli.err
    assert cli("plan", path, "--calibration", "toy@1", "--json") == 0
    plan = cli.json()
    name = plan["request"]["calibrations"][0]["key"] + "@"
    assert plan["calibration"][0]["id"].startswith(name)
    # The document holds all that it rests on: it is read again where no store is.
    assert read_plan_document(plan).request.calibrations[0].name == plan["calibration"][0]["id"].rpartition("/")[0]
    assert cli("plan", path, "--calibration", "toy") == 0
    assert "stale" not in cli.err
    assert cli("calibrate", "fit", str(faster), "--folds", "2") == 0
    assert cli("plan", path, "--calibration", "toy@1", "--json") == 0
    assert "this plan is stale" in cli.err
    assert "--calibration toy" in cli.err
    assert cli.json() == plan
    assert cli("plan", path, "--calibration", "toy", "--json") == 0
    assert cli.json()["digest"] != plan["digest"]
    assert "stale" not in cli.err


@pytest.mark.slow
def test_a_calibration_may_be_a_file_or_stand_in_the_request(cli: Cli, measured: Path) -> None:
    assert cli("calibrate", "fit", str(measured), "--folds", "2") == 0
    assert cli("calibrate", "show", "toy", "--json") == 0
    document = cli.json()
    (cli.folder / "toy.json").write_text(json.dumps(document))
    digests = []
    for calibrations in (["toy"], ["toy.json"], [document]):
        (cli.folder / "request.json").write_text(json.dumps(request(calibrations=calibrations)))
        assert cli("plan", str(cli.folder / "request.json"), "--no-store", "--json") == 0, cli.err
        digests.append(cli.json()["digest"])
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    ("calibrations", "field"),
    [
        (["toy"], "calibrations.0"),
        ([{"schema": "x"}], "calibrations.0"),
        ([7], "calibrations.0"),
        (["absent.json"], "calibrations.0"),
    ],
)
def test_calibrations_that_can_not_be_used(cli: Cli, calibrations: list[Any], field: str) -> None:
    path = cli.write("request.json", request(calibrations=calibrations))
    assert cli("plan", path) == 2
    assert field in cli.err


def test_a_device_may_not_name_a_calibration_that_is_not_given(cli: Cli) -> None:
    document = request() | {"cluster": toy_cluster("toy@sha256:1")}
    assert cli("plan", cli.write("request.json", document)) == 2
    assert "cluster.groups.0.node.device.calibration" in cli.err
    assert "not given with the request" in cli.err


def test_the_bar_of_a_profile_does_not_touch_stdout(cli: Cli, measured: Path) -> None:
    assert cli("calibrate", "fit", str(measured), "--folds", "2", "--json") == 0
    json.loads(cli.out)
    assert sys.stdout is not None
