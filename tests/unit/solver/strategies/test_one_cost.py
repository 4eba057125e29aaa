"""`shard` and `plan` have one cost of a sharding that both can say: of a step, of its parts, and of memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.graph_costs import OperatorChoice
from meshwright.solver.strategies.layer_costs import Pieces
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import shard_model, step_ns
from tests.unit.solver.strategies.both_costs import BOTH, costs_of, priced, request_of


@pytest.mark.parametrize(
    ("model", "nodes", "seq_len"),
    [
        ("llama-3.1-8b", 1, 8192),
        ("llama-3.1-8b", 8, 8192),
        # Tied embeddings; launches that take longer than kernels; experts; latent attention.
        ("gemma-2-9b", 1, 4096),
        ("qwen2.5-0.5b", 1, 1024),
        ("mixtral-8x7b", 8, 4096),
        ("deepseek-v3", 8, 4096),
    ],
)
def test_fully_sharded_data_parallelism_has_one_cost(model: str, nodes: int, seq_len: int) -> None:
    dp = 8 * nodes
    both = priced(request_of(model, nodes=nodes, batch=8 * dp, seq_len=seq_len), dp=dp, tp=1, microbatch=1)
    parts, stage, time = both.table.parts, both.plan.stages[0], both.time
    assert time.step_s == pytest.approx(both.plan.step_time_s, rel=BOTH)
    assert time.forward_s.sum() == pytest.approx(parts.forward_s.sum(), rel=BOTH)
    assert (time.forward_s + time.backward_s).sum() == pytest.approx(parts.compute_s.sum(), rel=BOTH)
    assert time.exposed_s == pytest.approx(parts.dp_comm_s, rel=BOTH)
    assert time.optimizer_s == pytest.approx(parts.optimizer_s, rel=BOTH)
    assert time.host_s == parts.step_host_s
    assert both.peak_bytes == pytest.approx(stage.device_bytes, rel=BOTH)
    assert both.costs.overhead_bytes == stage.overhead_bytes


@pytest.mark.parametrize(
    ("model", "tp", "seq_len"),
    [
        ("llama-3.1-8b", 2, 8192),
        ("llama-3.1-8b", 8, 8192),
        ("gemma-2-9b", 4, 4096),
        ("qwen2.5-0.5b", 2, 1024),
        # Keys are normed by head; products read what the layer below wrote.
        ("qwen3-8b", 4, 8192),
        ("exaone-4.0-32b", 2, 4096),
    ],
)
def test_layers_over_tp_with_sequence_parallelism_have_one_cost(model: str, tp: int, seq_len: int) -> None:
    both = priced(request_of(model, nodes=4, batch=64, seq_len=seq_len), dp=32 // tp, tp=tp, microbatch=1)
    parts, time = both.table.parts, both.time
    # An embedding's partial sums go to two readers of the first layer, and a loss over split classes sums its rows.
    inner = slice(2, -1)
    each_s = time.forward_s + time.backward_s + time.exposed_s
    assert each_s[inner] == pytest.approx(both.table.time_s[0][inner], rel=BOTH)
    assert time.forward_s[inner] == pytest.approx(parts.forward_s[inner], rel=BOTH)
    assert time.resharding_s[inner] == pytest.approx(parts.tp_comm_s[inner], rel=BOTH)
    assert time.exposed_s[inner] == pytest.approx(parts.dp_comm_s[inner], rel=BOTH)
    # Optimizer states of norms are split over tp, too.
    assert time.step_s == pytest.approx(both.plan.step_time_s, rel=0.02)
    assert both.peak_bytes == pytest.approx(both.plan.peak_bytes, rel=0.006)


def test_what_is_kept_split_is_gathered_again_for_scans() -> None:
    """A convolution and a scan read whole what products write split over the sequence."""
    both = priced(request_of("jamba-1.5-mini", nodes=4, batch=64, seq_len=4096), dp=16, tp=2, microbatch=1)
    inner = slice(2, -1)
    assert both.time.resharding_s[inner] == pytest.approx(both.table.parts.tp_comm_s[inner], rel=BOTH)


def test_the_state_of_data_parallelism_is_its_own_part_of_memory() -> None:
    both = priced(request_of("llama-3.1-8b", nodes=1, batch=64, seq_len=8192), dp=8, tp=1, microbatch=1)
    static = sum(
        len(both.costs.folding.members[index]) * both.costs.of_class(index).storages[choice.storage].static_bytes
        for index, choice in enumerate(both.choices)
    )
    assert static == pytest.approx(both.plan.stages[0].static_bytes, rel=BOTH)


@pytest.mark.parametrize("seed", range(8))
def test_sums_are_no_more_than_the_time_of_any_choice(seed: int) -> None:
    rng = random.Random(seed)
    model, seq_len = rng.choice([("llama-3.1-8b", 4096), ("qwen2.5-0.5b", 512), ("mixtral-8x7b", 2048)])
    costs = costs_of(request_of(model, nodes=2, batch=32, seq_len=seq_len), {"data": 4, "tensor": 4}, rng.choice([1, 2, 8]))

    def any_choices() -> list[OperatorChoice]:
        storages = [costs.of_class(index).storages for index in range(len(costs.folding.members))]
        picked = [rng.randrange(len(each)) for each in storages]
        return [OperatorChoice(each[at].assignment, at) for each, at in zip(storages, picked, strict=True)]

    for _ in range(6):
        host, sends, last = (np.array([[rng.choice([0.0, 0.3, 1.0]) for _ in costs.groups] for _ in "fb"]) for _ in range(3))
        pieces = Pieces(host, sends, last)
        for of in (pieces, costs.usual()):
            sums = costs.linear(of, rng.choice([None, any_choices()]))
            choices = any_choices()
            assert step_ns(sums, choices) / 1e9 + sums.constant_s - sums.rounding_s <= costs.step_time(choices).step_s


def test_sums_near_a_choice_have_its_time() -> None:
    both = priced(request_of("llama-3.1-8b", nodes=1, batch=64, seq_len=8192), dp=8, tp=1, microbatch=1)
    sums = both.costs.linear(both.time.pieces, both.choices)
    # Of the embedding's last micro-batch one pass is missing.
    assert step_ns(sums, both.choices) / 1e9 + sums.constant_s == pytest.approx(both.time.step_s, rel=1e-4)


def test_a_sharding_is_never_worse_than_the_plan_that_it_can_say() -> None:
    request = request_of("llama-3.1-8b", nodes=8, batch=512, seq_len=8192)
    plan = priced(request, dp=64, tp=1, microbatch=1).plan
    found = shard_model(request, device_mesh(request.cluster, {"data": 64}), ties=Ties.EQUAL_BLOCKS, stop=NoLimit())
    assert plan.fits
    assert found.best is not None and found.best.step_s is not None and found.best.step_s <= plan.step_time_s
    assert found.peak_bytes is not None and found.peak_bytes <= found.memory_bytes
