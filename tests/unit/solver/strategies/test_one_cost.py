"""`shard` and `plan` have one cost of a sharding that both can say: of a step, of its parts, and of memory."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.app.models import catalog
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.graph_costs import OperatorChoice
from meshwright.solver.strategies.layer_costs import LayerCosts, Pieces, StepTime
from meshwright.solver.strategies.operator_graph import Ties, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.solve import shard_model, step_ns
from meshwright.solver.strategies.strategy import WHOLE
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, StageTable, evaluate_decision
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.implementation import implementation_of
from meshwright.solver.training.space.meshes import Mesh

BOTH = 1e-9
"""Sums of the same terms in another order."""


@dataclass(frozen=True)
class Both:
    """One sharding priced by both."""

    plan: DecisionCost
    table: StageTable
    time: StepTime
    costs: LayerCosts
    choices: tuple[OperatorChoice, ...]

    @property
    def peak_bytes(self) -> float:
        law = self.costs.step.implementation.memory
        return law.device_bytes(self.costs.peak_bytes(self.choices), overhead_bytes=self.costs.overhead_bytes)


def request_of(model: str, *, nodes: int, batch: int, seq_len: int) -> TrainingRequest:
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), nodes),))
    workload = TrainingWorkload("training", global_batch=batch, seq_len=seq_len)
    return TrainingRequest(catalog.model(model), cluster, workload, search=Search(space=Space.LAUNCHABLE))


def costs_of(request: TrainingRequest, degrees: dict[str, int], microbatches: int) -> LayerCosts:
    workload = request.workload
    graph = unfolded(request.model, batch=workload.global_batch // microbatches, seq_len=workload.seq_len)
    step = TrainingStep(
        dtype=workload.precision,
        gradient_dtype=workload.gradient_dtype,
        optimizer=workload.optimizer,
        microbatches=microbatches,
        implementation=implementation_of(workload, request.search),
    )
    return LayerCosts(request, graph, device_mesh(request.cluster, degrees), step, Ties.EQUAL_BLOCKS)


def priced(request: TrainingRequest, *, dp: int, tp: int, microbatch: int) -> Both:
    """The first sharding of ZeRO-3 over dp, and over tp with sequence parallelism, by both."""
    table_costs = TrainingCosts(request)
    microbatches = request.workload.global_batch // (dp * microbatch)
    boundary = sharded(SEQ) if tp > 1 else REPLICATED
    candidate = Candidate(Mesh(dp=dp, tp=tp, pp=1, cp=1), microbatch, microbatches, 3, boundary, (Recompute.NONE,))
    kinds = table_costs.stage_kinds(candidate)
    sharding = next(table_costs.shardings(candidate, kinds))
    tables = table_costs.stage_tables(candidate, sharding, kinds)
    span = StageSpan(0, len(request.model.layers) - 1, Recompute.NONE)
    plan = evaluate_decision(Decision(candidate, sharding, (span,)), tables)
    over_tp = {
        (block, operator.name): built.strategies[node][sharding[place][node]].dim or WHOLE
        for place, block in enumerate(table_costs.block_names)
        if (built := table_costs.problem(block, table_costs.settings(candidate, kinds[0])[0])) is not None
        for node, operator in enumerate(request.model.block(block).operators)
    }
    costs = costs_of(request, {"data": dp} | ({"tensor": tp} if tp > 1 else {}), microbatches)
    choices = []
    for index, members in enumerate(costs.folding.members):
        pricing, node = costs.of_class(index), costs.graph.nodes[members[0]]
        wanted = (BATCH, *((over_tp[node.block, node.operator.name],) if tp > 1 else ()))
        assignment = [pricing.placed.name(each) for each in pricing.assignments].index(wanted)
        mine = [i for i, each in enumerate(pricing.storages) if each.assignment == assignment and set(each.axes) <= {0}]
        choices.append(OperatorChoice(assignment, max(mine, key=lambda i: len(pricing.storages[i].axes))))
    return Both(plan, tables[0], costs.step_time(choices), costs, tuple(choices))


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
    [("llama-3.1-8b", 2, 8192), ("llama-3.1-8b", 8, 8192), ("gemma-2-9b", 4, 4096), ("qwen2.5-0.5b", 2, 1024)],
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
