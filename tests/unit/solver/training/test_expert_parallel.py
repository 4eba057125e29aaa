"""The changes in a plan's costs that spreading experts over ranks makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.experts import HistogramRouting, PowerLawRouting
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields

LAYERS, HIDDEN, FFN, EXPERTS, TOP_K, SEQ_LEN = 4, 1024, 2048, 16, 2, 2048
EXPERT_PARAMETERS = LAYERS * EXPERTS * 3 * HIDDEN * FFN
"""Gate, up and down of each expert of each layer."""


def moe_request(*, nodes: int = 1, zero_stage: int = 1) -> TrainingRequest:
    config = {
        "model_type": "mixtral",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": FFN,
        "vocab_size": 32000,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "sliding_window": None,
    }
    return TrainingRequest(
        read_huggingface_config(config, name="moe"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), nodes),)),
        TrainingWorkload("training", global_batch=16 * nodes, seq_len=SEQ_LEN),
        search=Search(microbatch=(1,), tp=(1,), pp=(1,), cp=(1,), zero_stages=(zero_stage,), recompute=(Recompute.NONE,)),
    )


def with_ep(plan: Plan, ep: int) -> Plan:
    assert flat(plan).axes is not None
    axes = replace(flat(plan).axes, ep=ep)
    return with_fields(plan, axes=axes, stages=tuple(replace(stage, axes=axes) for stage in flat(plan).stages))


def predicted(request: TrainingRequest, ep: int) -> Plan:
    given = plan_training(request, stop=never_stop, progress=ignore_progress)
    plan = predict_training(request, with_ep(given, ep))
    assert flat(plan).axes == replace(flat(given).axes or Axes(), ep=ep)
    assert check(plan, request) == ()
    return plan


def test_weights_and_gradients_of_experts_are_divided_by_ep() -> None:
    request = moe_request()
    whole, spread = (flat(predicted(request, ep)).stages[0].memory for ep in (1, 4))
    gone = EXPERT_PARAMETERS * 3 / 4
    assert whole.weights_bytes - spread.weights_bytes == pytest.approx(2 * gone)
    assert whole.gradients_bytes - spread.gradients_bytes == pytest.approx(4 * gone)


def test_zero_divides_expert_state_by_the_ranks_that_share_the_experts() -> None:
    """16 experts / ep 4 on 8 / 4 ranks or 16 experts on 8 ranks: a device owns the same state either way."""
    request = moe_request()
    whole, spread = (flat(predicted(request, ep)).stages[0].memory for ep in (1, 4))
    assert spread.optimizer_bytes == pytest.approx(whole.optimizer_bytes)
    unsharded = moe_request(zero_stage=0)
    whole, spread = (flat(predicted(unsharded, ep)).stages[0].memory for ep in (1, 8))
    assert whole.optimizer_bytes - spread.optimizer_bytes == pytest.approx(12 * EXPERT_PARAMETERS * 7 / 8)


def test_rows_are_exchanged_four_times_a_layer_and_micro_batch() -> None:
    request = moe_request()
    plan = predicted(request, 8)
    costs = TrainingCosts(request)
    candidate = candidate_of(ep=8)
    (kind,) = costs.stage_kinds(candidate)
    row_bytes = SEQ_LEN * TOP_K * HIDDEN * 2
    each_s = float(collective_s(Collective.ALL_TO_ALL, row_bytes, kind.topology.ep))
    assert flat(plan).breakdown is not None and flat(plan).microbatch is not None
    assert flat(plan).breakdown.ep_comm_s == pytest.approx(flat(plan).microbatch.count * LAYERS * 4 * each_s)
    whole = flat(predicted(request, 1)).breakdown
    assert whole is not None and whole.ep_comm_s == 0.0


def test_exchange_between_nodes_takes_longer() -> None:
    request = moe_request(nodes=2)
    near, far = (flat(predicted(request, ep)).breakdown for ep in (8, 16))
    assert near is not None and far is not None
    assert far.ep_comm_s > 1.5 * near.ep_comm_s


def test_expert_groups_lie_inside_data_parallel_ones() -> None:
    costs = TrainingCosts(moe_request(nodes=2))
    kind = costs.stage_kinds(candidate_of(dp=16, ep=4))[0]
    assert (kind.topology.ep.n, kind.topology.ep.ranks_per_node) == (4, 4)
    # Ranks 0, 4, 8, 12 hold the same experts.
    assert (kind.topology.expert_state.n, kind.topology.expert_state.ranks_per_node) == (4, 2)


def candidate_of(*, dp: int = 8, ep: int) -> Candidate:
    return Candidate(Mesh(dp=dp, tp=1, pp=1, cp=1, ep=ep), 1, 2, 1, REPLICATED, (Recompute.NONE,))


@pytest.mark.parametrize("ep", [3, 16, 32])
def test_an_ep_that_does_not_divide_is_refused(ep: int) -> None:
    request = moe_request()
    given = plan_training(request, stop=never_stop, progress=ignore_progress)
    with pytest.raises(PlanFileError, match="spread evenly"):
        predict_training(request, with_ep(given, ep))
    assert {violation.rule for violation in check(with_ep(given, ep), request)} & {Rule.AXES, Rule.DIVISIBILITY}


def test_the_checker_finds_experts_that_are_not_divided() -> None:
    request = moe_request()
    whole = predicted(request, 1)
    assert {violation.rule for violation in check(with_ep(whole, 4), request)} >= {Rule.WEIGHTS, Rule.GRADIENTS}


def test_ranks_wait_for_the_one_whose_experts_are_popular() -> None:
    even = moe_request()
    # Long enough not to wait for the host.
    even = replace(even, workload=replace(even.workload, seq_len=8 * SEQ_LEN))
    # Rank 0 of 4 holds the first four experts, which get half of all rows: twice the mean.
    routing = HistogramRouting("histogram", (3.0,) * 4 + (1.0,) * 12)
    crowded = replace(even, workload=replace(even.workload, experts=routing))
    spread, uneven = predicted(even, 4), predicted(crowded, 4)
    assert uneven.predicted is not None and spread.predicted is not None
    assert uneven.predicted.step_time_s > 1.1 * spread.predicted.step_time_s
    # Rows to the experts, gate, up and their product, once more as many: 2 bytes each.
    rows = 8 * SEQ_LEN * TOP_K * (HIDDEN + 3 * FFN)
    more = flat(uneven).stages[0].memory.activations_bytes - flat(spread).stages[0].memory.activations_bytes
    assert more == pytest.approx(LAYERS * 2 * rows, rel=0.2)
    # A rank that holds all experts has all rows.
    assert predicted(crowded, 1).predicted == predicted(even, 1).predicted


def test_the_checker_sees_rows_left_out_of_a_crowded_rank() -> None:
    even = moe_request()
    law = replace(even, workload=replace(even.workload, experts=PowerLawRouting("power_law", 0.8)))
    assert Rule.ACTIVATIONS in {violation.rule for violation in check(predicted(even, 4), law)}


def test_training_keeps_one_copy_of_each_expert() -> None:
    with pytest.raises(WorkloadError, match="one copy"):
        TrainingWorkload(
            "training", global_batch=8, seq_len=128, experts=PowerLawRouting("power_law", 1.0, redundant_experts=8)
        )
    even = moe_request()
    few = replace(even, workload=replace(even.workload, experts=HistogramRouting("histogram", (1.0, 1.0))))
    with pytest.raises(WorkloadError, match="histogram"):
        predict_training(few, with_ep(plan_training(even, stop=never_stop, progress=ignore_progress), 4))
