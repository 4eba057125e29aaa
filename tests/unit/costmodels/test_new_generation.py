"""A new generation of accelerators is data alone: files in a copy of the hardware folder, and a plan on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright
from meshwright.costmodels import hardware
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware.generations import OTHER, AllReduceKernels, Slowdown, generation, generation_of
from meshwright.costmodels.serving.engine_profile import ServingEngine

ROOT = Path(meshwright.__path__[0]).resolve().parent
HARDWARE = Path(hardware.__path__[0])
GENERATIONS = sorted((HARDWARE / "generations").glob("*.json"))


@pytest.mark.parametrize("path", GENERATIONS, ids=lambda path: path.stem)
def test_a_generation_says_where_its_figures_are_from(path: Path) -> None:
    document = json.loads(path.read_text())
    assert path.stem == document["name"]
    assert document["sources"].keys() == document.keys() - {"name", "sources"}
    assert generation(path.stem).engine_all_reduce.keys() == {engine.value for engine in ServingEngine}


def test_every_device_has_a_generation_and_calibrations_have_one() -> None:
    documents = [json.loads(path.read_text()) for path in (HARDWARE / "devices").glob("*.json")]
    for document in documents:
        assert generation_of(document["calibration"]).name == document["generation"]
    assert {document["generation"] for document in documents} | {OTHER} == {path.stem for path in GENERATIONS}


def test_wrong_figures_are_refused() -> None:
    with pytest.raises(ClusterError, match="factors of 1 or more"):
        Slowdown(0.9, 1.0)
    with pytest.raises(ClusterError, match="shares up to 1"):
        AllReduceKernels(1e-6, 1.2, 1e-6, 0.3)
    with pytest.raises(ClusterError, match="hopper"):
        generation("hoper")
    assert generation_of("h1000").name == OTHER


TRAINING = {"kind": "training", "global_batch": 64, "seq_len": 2048}
SERVING = {
    "kind": "serving",
    "arrivals": {"process": "poisson", "requests_per_s": 1.0},
    "prompt_tokens": {"fixed": 500},
    "output_tokens": {"fixed": 100},
}


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with a device of a new generation, added by files alone."""
    package = tmp_path_factory.mktemp("newer") / "meshwright"
    package.mkdir()
    # Copies, with what is compiled beside them: of links the functions would be others, and be compiled anew.
    for path in (ROOT / "meshwright").glob("*.py"):
        shutil.copy2(path, package)
    for other in ("app", "solver", "costmodels"):
        shutil.copytree(ROOT / other, package / other)
    copied = package / "costmodels" / "hardware"
    on = "r100_sxm"
    rewritten(copied, "generations/blackwell", "generations/rubin", name="rubin")
    rewritten(
        copied,
        "devices/b300-sxm-270gb",
        "devices/r100-sxm",
        name="r100-sxm",
        aliases=["r100"],
        generation="rubin",
        calibration=on,
        memory_bytes_per_s=13e12,
    )
    rewritten(copied, "nodes/dgx-b300", "nodes/dgx-r100", name="dgx-r100", aliases=[], device="r100-sxm")
    for kind in ("kernels", "collectives", "serving"):
        rewritten(copied, f"calibrations/{kind}/b300_sxm", f"calibrations/{kind}/{on}", key=on)
    return package


def rewritten(folder: Path, old: str, new: str, **fields: object) -> None:
    document = json.loads((folder / f"{old}.json").read_text()) | fields
    (folder / f"{new}.json").write_text(json.dumps(document))


@pytest.mark.slow
@pytest.mark.parametrize("workload", [TRAINING, SERVING], ids=["training", "serving"])
def test_a_device_of_a_new_generation_plans_by_its_files_alone(
    workload: dict[str, object], newer: Path, tmp_path: Path
) -> None:
    slo = {} if workload is TRAINING else {"slo": {"p95_ttft_ms": 2000, "p95_tpot_ms": 50}, "objective": "devices"}
    launcher = "torchtitan" if workload is TRAINING else "vllm"
    search = {"launcher": launcher, "tp": [1], "pp": [1], "time_limit_s": 600.0}
    request = {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"catalog": "dgx-r100", "nodes": 1},
        "workload": workload,
        "search": search,
        **slo,
    }
    asked = tmp_path / "request.json"
    asked.write_text(json.dumps(request))
    command = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", "plan", "--json", "--no-store", asked]
    environment = os.environ | {"PYTHONPATH": str(newer.parent)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["feasible"]
    assert any(use["device"] == "r100-sxm" for use in plan["calibration"])
