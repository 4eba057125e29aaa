"""Reading contest files and ``run_shard``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.cli.shard_command import Deadline, run_shard
from meshwright.app.models.iopddl import read_sharding_problem
from meshwright.costmodels.errors import InvalidInputError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "sharding"

EXAMPLE: dict[str, Any] = {
    "name": "three operators",
    "nodes": {
        "intervals": [[0, 4], [2, 6], [5, 5]],
        "costs": [[10, 1], [3, 30], [0, 0]],
        "usages": [[1, 4], [6, 2], [99, 99]],
    },
    "edges": {"nodes": [[0, 1], [2, 1]], "costs": [[0, 5, 10**18, 0], [1, 2, 3, 4]]},
    "usage_limit": 7,
}


def test_small_problem_end_to_end(tmp_path: Path) -> None:
    # Fits: (0, 0) 10 + 3 + 0 + 1 = 14; (0, 1) 10 + 30 + 5 + 2 = 47; (1, 1) 1 + 30 + 0 + 2 = 33; (1, 0) is forbidden.
    answer = run_shard(_write(tmp_path, EXAMPLE), time_limit_s=None, work_limit=None, seed=0)
    assert (answer["cost"], answer["bound"], answer["gap"], answer["status"]) == (14, 14, 0.0, "optimal")
    assert answer["solution"] == [0, 0, 0]
    assert answer["feasible"] is True


def test_another_solver_is_asked_only_on_demand(tmp_path: Path) -> None:
    path = _write(tmp_path, EXAMPLE)
    assert run_shard(path, time_limit_s=None, work_limit=None, seed=0)["second_opinion"] is None
    answer = run_shard(path, time_limit_s=None, work_limit=None, seed=0, confirm="HiGHS")
    assert answer["second_opinion"] == {"solver": "HiGHS", "verdict": "agrees", "cost": 14}
    with pytest.raises(InvalidInputError, match=r"PuLP does not find here.*HiGHS"):
        run_shard(path, time_limit_s=None, work_limit=None, seed=0, confirm="Nothing")


def test_gzip_and_plain_are_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "p.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"problem": EXAMPLE}).encode()))
    plain = read_sharding_problem(_write(tmp_path, EXAMPLE))
    assert read_sharding_problem(packed).edge_costs.tolist() == plain.edge_costs.tolist()


def test_infeasible_is_said_so(tmp_path: Path) -> None:
    answer = run_shard(_write(tmp_path, EXAMPLE | {"usage_limit": 2}), time_limit_s=30.0, work_limit=None, seed=0)
    assert answer["status"] == "infeasible"
    assert answer["feasible"] is False
    assert answer["solution"] is None and answer["cost"] is None and answer["bound"] is None


def test_work_limit_gives_the_same_answer_twice(tmp_path: Path) -> None:
    path = _write(tmp_path, EXAMPLE)
    answers = [run_shard(path, time_limit_s=None, work_limit=1e9, seed=1) for _ in range(2)]
    for answer in answers:
        del answer["seconds"]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"not json", "not an operator-sharding problem"),
        (b'{"problem": {"name": "x"}}', "problem.nodes: Field required"),
        (b"\x1f\x8bbroken", "damaged gzip"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(InvalidInputError, match=message):
        read_sharding_problem(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "problem.extra: Extra inputs"),
        ({"usage_limit": 7.5}, "usage_limit"),
        ({"nodes": EXAMPLE["nodes"] | {"costs": [[10, 1.5], [3, 30], [0, 0]]}}, "nodes.costs.0.1"),
        ({"edges": {"nodes": [[0, 3]], "costs": [[1, 2, 3, 4]]}}, "edge 0 names a node outside 0 .. 2"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_sharding_problem(_write(tmp_path, EXAMPLE | change))


def test_missing_file_and_bad_limits(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing\.json can't be read"):
        read_sharding_problem(tmp_path / "nothing.json")
    path = _write(tmp_path, EXAMPLE)
    with pytest.raises(InvalidInputError, match="not both"):
        run_shard(path, time_limit_s=1.0, work_limit=1.0, seed=0)
    with pytest.raises(InvalidInputError, match="time limit must be positive"):
        run_shard(path, time_limit_s=0.0, work_limit=None, seed=0)
    with pytest.raises(InvalidInputError, match="work limit must be positive"):
        run_shard(path, time_limit_s=None, work_limit=-1.0, seed=0)


def test_a_deadline_keeps_more_back_on_a_shared_core(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"wall": 100.0, "cpu": 5.0}
    monkeypatch.setattr("meshwright.app.cli.shard_command.time.monotonic", lambda: clock["wall"])
    monkeypatch.setattr("meshwright.app.cli.shard_command.time.process_time", lambda: clock["cpu"])
    stop = Deadline(start_s=100.0, start_cpu_s=5.0, end_s=200.0)
    clock |= {"wall": 140.0, "cpu": 45.0}
    alone_s = stop.seconds_left()
    # 10 s of processor time in 40 s: what is kept back for the last steps takes four times as long.
    clock["cpu"] = 15.0
    assert alone_s == pytest.approx(60.0 - 1.0 - 4.0)
    assert stop.seconds_left() == pytest.approx(60.0 - 4.0 - 4.0)
    assert 0.4 < stop.used() < 0.5 and not stop()
    clock["wall"] = 193.0
    assert stop() and stop.used() >= 1.0


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the contest data at {DATA}")
def test_contest_example_is_solved(tmp_path: Path) -> None:
    answer = run_shard(DATA / "example.json", time_limit_s=None, work_limit=None, seed=0)
    assert answer["status"] == "optimal"


def _write(folder: Path, problem: dict[str, Any]) -> Path:
    path = folder / "problem.json"
    path.write_text(json.dumps({"problem": problem}))
    return path
