"""One sharding priced by `plan` and by `shard`."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.models import catalog
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.graph_costs import OperatorChoice
from meshwright.solver.strategies.layer_costs import LayerCosts, StepTime
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import model_costs
from meshwright.solver.strategies.strategy import WHOLE
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, StageTable, evaluate_decision
from meshwright.solver.training.space.candidates import Candidate
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
    mesh = device_mesh(request.cluster, degrees)
    costs = model_costs(request, request.workload, mesh, Ties.EQUAL_BLOCKS, microbatches)
    assert isinstance(costs, LayerCosts)
    return costs


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
