"""``meshwright shard --model``: a request's model over a mesh."""

from __future__ import annotations

import pytest

from meshwright.app.cli.shard_command import default_mesh, parse_mesh
from meshwright.costmodels.errors import InvalidInputError
from tests.support.command_line import SHARDING_PROBLEM, Cli
from tests.support.requests_given import resolved, serving, tiny_graph, training


def small(**changes: object) -> dict[str, object]:
    """A request for a model of four layers with two operators each, on eight devices."""
    workload = training()["workload"] | {"global_batch": 16, "seq_len": 512}
    return training(model={"graph": tiny_graph()}, workload=workload, **changes)


def test_every_operator_gets_a_strategy_and_the_answer_is_proven(cli: Cli) -> None:
    request = cli.write("request.json", small())
    assert cli("shard", "--model", request, "--mesh", "data=2,tensor=4", "--json") == 0
    answer = cli.json()
    assert answer["status"] in ("optimal", "feasible")
    assert 0.999 * answer["step_time_s"] < answer["bound_s"] <= answer["step_time_s"] and answer["gap"] < 1e-3
    assert answer["mesh"] == {"data": 2, "tensor": 4}
    assert 16 % answer["microbatches"] == 0
    assert sum(operator["count"] for operator in answer["operators"]) == 8
    assert all(set(operator["axes"]) == {"data", "tensor"} for operator in answer["operators"])
    layers = [
        layer for operator in answer["operators"] for first, last in operator["layers"] for layer in range(first, last + 1)
    ]
    assert sorted(layers) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert answer["peak_memory_bytes"] <= answer["memory_limit_bytes"]


def test_loosened_ties_are_never_slower(cli: Cli) -> None:
    request = cli.write("request.json", small())
    steps = []
    for ties in ("equal-blocks", "none"):
        assert cli("shard", "--model", request, "--ties", ties, "--json") == 0
        steps.append(cli.json()["step_time_s"])
    assert steps[1] <= steps[0]


def test_the_page_names_strategies_and_transfers_in_80_columns(cli: Cli) -> None:
    assert cli("shard", "--model", cli.write("request.json", training()), "--mesh", "data=2,tensor=4") == 0
    assert "no sharding over this mesh is faster" in cli.out
    assert "layer/attention" in cli.out and "sent by a device" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


def test_what_fits_no_device_is_exit_1_with_what_it_would_need(cli: Cli) -> None:
    request = cli.write("request.json", training(model={"catalog": "llama-3.1-405b"}))
    assert cli("shard", "--model", request, "--json") == 1
    answer = cli.json()
    assert answer["status"] == "infeasible" and answer["bound_s"] is None
    assert answer["least_peak_bytes"] > answer["memory_limit_bytes"]
    assert cli("shard", "--model", request) == 1
    assert "Infeasible" in cli.out and "would need" in cli.out


def test_a_work_limit_gives_the_same_answer_twice(cli: Cli) -> None:
    request = cli.write("request.json", training())
    answers = []
    for _ in range(2):
        cli("shard", "--model", request, "--work-limit", "100000000", "--json")
        answers.append(cli.json() | {"seconds": 0})
    assert answers[0] == answers[1]


def test_a_search_that_is_stopped_claims_no_bound(cli: Cli) -> None:
    cli("shard", "--model", cli.write("request.json", training()), "--work-limit", "1", "--json")
    answer = cli.json()
    assert answer["status"] in ("feasible", "unknown")
    assert answer["bound_s"] == 0.0


@pytest.mark.parametrize(
    "options",
    [
        ("--mesh", "data=2,tensor"),
        ("--mesh", "data=0"),
        ("--mesh", "data=2,data=4"),
        ("--mesh", "data=64,tensor=8"),
        ("--mesh", "a=2,b=2,c=1,d=1,e=1"),
        ("--time-limit", "0"),
        ("--time-limit", "1", "--work-limit", "1"),
    ],
)
def test_bad_options_are_exit_2(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("shard", "--model", cli.write("request.json", small()), *options) == 2
    assert "Traceback" not in cli.err


def test_it_needs_one_thing_to_shard_and_a_training_workload(cli: Cli) -> None:
    problem, request = cli.write("problem.json", SHARDING_PROBLEM), cli.write("request.json", small())
    assert cli("shard") == 2
    assert cli("shard", problem, "--model", request) == 2
    assert cli("shard", problem, "--mesh", "data=2") == 2
    assert cli("shard", "--model", cli.write("serving.json", serving())) == 2


def test_a_mesh_is_read_from_outer_to_inner() -> None:
    assert list(parse_mesh("a=4, b=2").items()) == [("a", 4), ("b", 2)]
    assert parse_mesh(None) == {}
    with pytest.raises(InvalidInputError):
        parse_mesh("4x2")


def test_the_default_mesh_is_nodes_by_devices() -> None:
    assert default_mesh(resolved().cluster) == {"device": 8}
