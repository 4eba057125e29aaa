"""The lock: stable bytes, six digits, one plan a block, and fields that say what changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.cli.pytest_plugin import LOCK_NAME, REQUEST_PATTERN
from meshwright.app.regression.inputs import InputChange, changes, plan_inputs
from meshwright.app.regression.lock import Lock, lock_text, read_lock
from meshwright.app.regression.locked_plan import LockedPlan, locked_plan, rounded
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.resolve import request_document
from tests.integration.regression.project import LOCK, REQUEST, Project
from tests.support.fakes import feasible_plan, infeasible_plan
from tests.support.requests_given import resolved, training

ROOT = Path(__file__).parents[3]


def entry(document: dict[str, Any] | None = None) -> LockedPlan:
    request = resolved(document)
    return locked_plan(feasible_plan(request), keyed_request(request).digest, request_document(request))


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    request = resolved()
    infeasible = locked_plan(infeasible_plan(request), "sha256:0", request_document(request))
    lock = Lock(plans={"b.plan.yaml": entry(), "a.plan.yaml": infeasible}, policy={"structure": "fail"})
    (tmp_path / LOCK).write_text(lock_text(lock))
    read = read_lock(tmp_path / LOCK)
    assert lock_text(read) == lock_text(lock)
    assert all(plan.is_sealed for plan in read.plans.values())


def test_keys_are_sorted_and_a_plan_is_one_block() -> None:
    one, two = Lock(plans={"a": entry()}), Lock(plans={"b": entry(), "a": entry()})
    assert json.dumps(json.loads(lock_text(two)), sort_keys=True, indent=2) + "\n" == lock_text(two)
    lines = lock_text(one).splitlines()
    assert "\n".join(lines[1:-4]) in lock_text(two)
    assert lock_text(two).isascii()


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_rounding_forgets_what_processors_differ_in(value: float) -> None:
    short = rounded(value)
    assert short == pytest.approx(value, rel=5.1e-6)
    assert rounded(short) == short
    assert float(json.dumps(short)) == short


def test_the_seal_covers_every_part() -> None:
    whole = entry()
    document = json.loads(lock_text(Lock(plans={"a": whole})))["plans"]["a"]
    for name in document:
        changed = {"feasible": False, "figures": {}, "inputs": {}, "times_s": {}, "structure": whole.structure}
        value = changed.get(name, "other")
        if name != "structure":
            assert not _replaced(whole, name, value).is_sealed or (name in ("shortfall",) and value is None), name


def _replaced(plan: LockedPlan, name: str, value: Any) -> LockedPlan:
    from dataclasses import replace

    return replace(plan, **{name: value})


def test_inputs_name_the_field_that_changed() -> None:
    def change(**fields: Any) -> tuple[InputChange, ...]:
        was, now = (plan_inputs(request_document(resolved(document))) for document in (training(), training(**fields)))
        return changes(was, now)

    assert change() == ()
    assert [c.field for c in change(cluster={"catalog": "dgx-h100", "nodes": 2})] == ["cluster.groups.dgx-h100.nodes"]
    assert [str(c) for c in change(search={"tp": [1, 2]})] == ["search.tp not set -> 1, 2"]
    assert [c.field for c in change(search={"time_limit_s": 1.0, "memory_limit_bytes": 5})] == []
    assert "calibration.kernels/a100_sxm.json" in [c.field for c in change(cluster={"catalog": "dgx-a100", "nodes": 1})]


def test_a_calibration_counts_with_those_it_builds_on() -> None:
    inputs = plan_inputs(request_document(resolved(training(cluster={"catalog": "hgx-h800", "nodes": 1}))))
    named = {field for field in inputs if field.startswith("calibration.")}
    assert named == {f"calibration.{kind}/{key}_sxm.json" for kind in ("kernels", "collectives") for key in ("h800", "h100")}


def test_the_plugin_collects_what_the_command_finds() -> None:
    from meshwright.app.regression import check as discovery
    from meshwright.app.regression import lock

    assert (REQUEST_PATTERN, LOCK_NAME) == (discovery.REQUEST_PATTERN, lock.LOCK_NAME)


@pytest.mark.slow
def test_the_lock_is_the_same_on_one_busy_core_elsewhere_in_the_world(project: Project, tmp_path: Path) -> None:
    project.write(REQUEST | {"workload": REQUEST["workload"] | {"global_batch": 16}}, "half.plan.yaml")
    project.update()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project.folder, elsewhere)
    (elsewhere / LOCK).unlink()
    environment = os.environ | {
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "tr_TR.UTF-8",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(ROOT),
        "MESHWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path}/elsewhere.db",
    }
    limit = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from meshwright.app.cli.main import main; main()"
    )
    command = [sys.executable, "-c", limit, "check", ".", "--update"]
    with load_on(core=min(os.sched_getaffinity(0))):
        subprocess.run(command, cwd=elsewhere, env=environment, check=True)
    assert (elsewhere / LOCK).read_bytes() == (project.folder / LOCK).read_bytes()


@contextmanager
def load_on(core: int) -> Iterator[None]:
    """A process that computes without end on a core."""
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
        assert busy.poll() is None, "the load ended before the check"
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.slow
def test_a_changed_calibration_is_the_cause(project: Project, tmp_path: Path) -> None:
    """Meshwright with another calibration file: a copy of the cost models, its H100 half as fast at matrix products."""
    build = tmp_path / "build" / "meshwright"
    shutil.copytree(ROOT / "meshwright", build)
    path = build / "costmodels" / "hardware" / "calibrations" / "kernels" / "h100_sxm.json"
    calibration = json.loads(path.read_text())
    curve = calibration["gemm"]["bf16"]["curve"]
    curve["tile_efficiency"] = [share / 2 for share in curve["tile_efficiency"]]
    path.write_text(json.dumps(calibration))
    run = subprocess.run(
        [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", "check", str(project.folder), "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(build.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    report = json.loads(run.stdout)
    (change,) = report["meshwright_changes"]
    assert change.startswith("calibration.kernels/h100_sxm.json ")
    finding = report["plans"][0]["findings"][0]
    assert finding["rule"] == "throughput"
    assert finding["cause"].startswith("calibration.kernels/h100_sxm.json ")
    assert finding["fix"] == f"if it is meant: {report['accept']}"
