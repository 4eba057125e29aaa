"""Plans that were run in production fit, with the memory choices that their reports name, and only with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.evidence.training.prediction import launchers_spans
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.predicted import Certificate, SearchStats, Status
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, evaluate_decision
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.report.plan_report import decided_plan
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.verify.check import check

WORKLOAD = TrainingWorkload(
    "training",
    global_batch=15360,
    seq_len=4096,
    matmul=MatmulRecipe.FP8_BLOCKWISE,
    optimizer=Optimizer.ADAMW_BF16,
    saved_activations=SavedFormat.FP8,
)
IN_PRODUCTION = Search(space=Space.FREE, risk=0.5)
"""The run is known to have fitted: the median must."""

DUALPIPE = Candidate(
    Mesh(dp=128, tp=1, pp=16, cp=1, ep=64), 1, 120, 1, REPLICATED, (Recompute.FINE_GRAINED,), Pipelining(Schedule.DUALPIPE)
)


def deepseek(workload: TrainingWorkload, candidate: Candidate) -> tuple[TrainingCosts, Decision, DecisionCost]:
    """DeepSeek-V3 on 2,048 H800 (its report, section 3.2)."""
    cluster = Cluster((NodeGroup("a", node_type("hgx-h800"), 256),))
    costs = TrainingCosts(TrainingRequest(model("deepseek-v3"), cluster, workload, search=IN_PRODUCTION))
    kinds = costs.stage_kinds(candidate)
    sharding = next(costs.shardings(candidate, kinds))
    decision = Decision(candidate, sharding, launchers_spans(len(costs.model.layers), candidate))
    return costs, decision, evaluate_decision(decision, costs.stage_tables(candidate, sharding, kinds))


def test_deepseek_v3_fits_and_passes_the_checker() -> None:
    costs, decision, cost = deepseek(WORKLOAD, DUALPIPE)
    assert cost.fits
    certificate = Certificate(Status.FEASIBLE, cost.step_time_s, None, None, "s", "a given plan")
    plan = decided_plan(costs.request, costs, decision, cost, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    assert check(plan, costs.request) == ()
    assert predict_training(costs.request, plan).predicted == plan.predicted


@pytest.mark.parametrize("missing", ["saved activations", "recompute"])
def test_deepseek_v3_needs_what_its_report_names(missing: str) -> None:
    workload = replace(WORKLOAD, saved_activations=SavedFormat.WORKING) if missing == "saved activations" else WORKLOAD
    modes = (Recompute.NONE,) if missing == "recompute" else DUALPIPE.recompute
    _, _, cost = deepseek(workload, replace(DUALPIPE, recompute=modes))
    assert not cost.fits


def test_moments_in_bf16_save_four_bytes_of_each_parameter_of_a_shard() -> None:
    _, _, small = deepseek(WORKLOAD, DUALPIPE)
    _, _, large = deepseek(replace(WORKLOAD, optimizer=Optimizer.ADAMW), DUALPIPE)
    assert large.stages[3].static_bytes - small.stages[3].static_bytes > 2 * 2**30
