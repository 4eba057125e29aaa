"""Shardings that a request asks for: plans have them, refusals say why not, and the checker finds plans without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.catalog import model
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, Recompute, Space, StageDegrees
from meshwright.solver.problem.declared.constraints import WHOLE, Constraint
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import shard_model
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check
from meshwright.solver.verify.training.sharding import _is_like
from meshwright.solver.verify.violation import Rule
from tests.support.requests_given import resolved

REQUEST = TrainingRequest(
    model("llama-3.1-8b"),
    Cluster((NodeGroup("node", node_type("dgx-h100"), 1),)),
    TrainingWorkload("training", 16, 4096),
    search=Search(
        space=Space.FREE,
        tp=(4,),
        pp=(1,),
        cp=(1,),
        microbatch=(1,),
        zero_stages=(1,),
        recompute=(Recompute.FULL,),
        schedules=(Schedule.ONE_F_ONE_B,),
    ),
)
UP, HEAD = "layer/gate_up_proj", "head/lm_head"


def asked(*constraints: tuple[str, str], request: TrainingRequest = REQUEST, **changed: Any) -> TrainingRequest:
    fixed = tuple(Constraint(operators, sharding) for operators, sharding in constraints)
    return replace(request, search=replace(request.search, constraints=fixed, **changed))


def planned(request: TrainingRequest) -> Plan:
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert check(plan, request) == ()
    return plan


def shardings(plan: Plan) -> dict[str, str]:
    return {f"{entry.block}/{entry.operator}": entry.strategy for entry in record_of(plan).shardings}


def step_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def tp_of(plan: Plan) -> int:
    axes = record_of(plan).axes
    assert axes is not None
    return axes.tp


def test_a_plan_has_the_shardings_that_are_asked_for() -> None:
    free = planned(REQUEST)
    assert shardings(free)[UP] == "ffn" and shardings(free)[HEAD] == "vocab"
    plan = planned(asked((UP, WHOLE), ("head/*", "seq")))
    found = shardings(plan)
    assert found[UP] == WHOLE
    assert {found[name] for name in found if name.startswith("head/")} == {"seq"}
    assert step_s(plan) > step_s(free)
    assert "constraints in ['head/*: seq', 'layer/gate_up_proj: replicate']" in plan.certificate.space


def test_what_is_best_may_be_asked_for_and_changes_nothing() -> None:
    free = planned(REQUEST)
    same = planned(asked(*shardings(free).items()))
    assert step_s(same) == step_s(free)
    assert shardings(same) == shardings(free)


def test_a_dim_that_is_asked_for_leaves_degrees_that_split_it() -> None:
    """Where devices need no tp, plans have none."""
    assert tp_of(planned(replace(REQUEST, search=replace(REQUEST.search, tp=(1, 2))))) == 1
    assert tp_of(planned(asked((HEAD, "vocab"), tp=(1, 2)))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [{"pp": (2,), "dp": (1,), "stage_degrees": StageDegrees.ANY}, {"batch_shares": BatchShares.BY_GROUP}],
    ids=["stages that differ", "replicas by node group"],
)
def test_each_stage_and_group_has_them(changed: dict[str, Any]) -> None:
    """The checker finds out a plan that was free of them."""
    small = replace(node_type("dgx-h100"), devices_per_node=2)
    pair = Cluster((NodeGroup("first", small, 1), NodeGroup("second", small, 1)))
    request = replace(REQUEST, model=model("qwen3-0.6b"), cluster=pair)
    free, fixed = asked(request=request, tp=(2,), **changed), asked((UP, WHOLE), request=request, tp=(2,), **changed)
    assert planned(fixed).feasible
    assert {violation.rule for violation in check(planned(free), fixed)} == {Rule.SEARCH}


def test_launchable_plans_have_them_where_a_launcher_can() -> None:
    search = replace(REQUEST.search, space=Space.LAUNCHABLE)
    assert planned(asked(("*norm", "seq"), request=replace(REQUEST, search=search))).feasible
    refused = planned(asked((UP, WHOLE), request=replace(REQUEST, search=search)))
    assert refused.reason is not None and refused.reason.constraint == "search.constraints"


def test_what_no_candidate_can_have_is_said() -> None:
    refused = planned(asked(("head/final_norm", "hidden")))
    assert refused.reason is not None and refused.reason.constraint == "search.constraints"
    assert "head/final_norm: hidden" in refused.reason.message


def test_the_checker_finds_a_plan_without_them() -> None:
    broken = check(planned(REQUEST), asked((UP, WHOLE), ("*norm", WHOLE)))
    assert [(violation.rule, violation.where) for violation in broken] == [(Rule.SEARCH, UP)]


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ([("layer/nothing", WHOLE)], "names no operator"),
        ([("*", "vocab")], "does not have"),
        ([(HEAD, "vocab"), ("*head*", WHOLE)], "several shardings of head/lm_head"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(constraints: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        asked(*constraints)


def test_a_request_document_holds_them() -> None:
    document: dict[str, Any] = {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"catalog": "dgx-h100", "nodes": 1},
        "workload": {"kind": "training", "global_batch": 16, "seq_len": 4096},
        "search": {"constraints": [{"operators": UP, "sharding": WHOLE}]},
    }
    request = resolved(document)
    assert request.search.constraints == (Constraint(UP, WHOLE),)
    assert resolved(request_document(request)) == request
    document["search"]["constraints"] = [{"operators": "layer/nothing", "sharding": WHOLE}]
    with pytest.raises(DocumentError, match=r"^search: a constraint names no operator"):
        resolved(document)
    # So many are not compared with operators.
    document["search"]["constraints"] *= 65
    with pytest.raises(DocumentError, match="at most 64"):
        resolved(document)


def test_requests_without_them_keep_their_digests() -> None:
    assert "constraints" not in request_document(REQUEST)["search"]


def test_shardings_alone_refuse_them() -> None:
    mesh = device_mesh(REQUEST.cluster, {"tensor": 8})
    with pytest.raises(WorkloadError, match="constraints are of plans"):
        shard_model(asked((UP, WHOLE)), mesh, ties=Ties.EQUAL_BLOCKS, stop=NoLimit(), seed=0)


@given(pattern=st.text("ab*/", min_size=1, max_size=6), block=st.text("ab", max_size=3), operator=st.text("ab", max_size=3))
def test_search_and_checker_read_names_alike(pattern: str, block: str, operator: str) -> None:
    assert Constraint(pattern, WHOLE).covers(block, operator) == _is_like(pattern, f"{block}/{operator}")
