"""Shardings that a request asks for: plans have them, refusals say why not, and the checker finds plans without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.layouts import ByGroup
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, Recompute, Space, StageDegrees
from meshwright.solver.problem.declared.constraints import (
    WHOLE,
    AlikeShardings,
    Constraint,
    FixedSharding,
    FixedStage,
    FixedTensor,
    is_like,
)
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import shard_model
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import positions
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check
from meshwright.solver.verify.training.constraints import _is_like
from meshwright.solver.verify.violation import Rule
from tests.support.requests_given import resolved
from tests.unit.solver.training.enumerated import fewer_nodes
from tests.unit.solver.training.every_plan import every_fitting_plan
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.shares import unequal_requests

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
T5 = {"model_type": "t5", "num_layers": 3, "num_decoder_layers": 4}
UP, HEAD = "layer/gate_up_proj", "head/lm_head"


def asked(*constraints: tuple[str, str], request: TrainingRequest = REQUEST, **changed: Any) -> TrainingRequest:
    fixed = tuple(FixedSharding(operators, sharding) for operators, sharding in constraints)
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
    assert "constraints head/*: seq and layer/gate_up_proj: replicate" in plan.certificate.space


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


PIPELINED: dict[str, Any] = {"tp": (1,), "pp": (4,), "microbatch": (1,)}


def with_constraints(request: TrainingRequest, *constraints: Constraint) -> TrainingRequest:
    return replace(request, search=replace(request.search, constraints=constraints))


def layers_of(plan: Plan) -> list[list[int]]:
    """The layers of each stage, the embedding being 0."""
    return [
        [layer for span in stage.blocks for layer in range(span.first, span.first + span.count)]
        for stage in record_of(plan).stages
    ]


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.DUALPIPE])
def test_layers_lie_on_the_stage_that_is_asked_for(schedule: Schedule) -> None:
    """Also of a schedule whose ranks hold several parts, and of one that has each part on two ranks."""
    request = asked(**PIPELINED, schedules=(schedule,), virtual_stages=(2,) if schedule is Schedule.INTERLEAVED else ())
    free = planned(request)
    fixed = with_constraints(request, FixedStage("layer", 1, "6"), FixedStage("head", -1))
    plan = planned(fixed)
    held = layers_of(plan)
    assert 7 in held[1] and 33 in held[-1]
    assert step_s(plan) >= step_s(free)
    assert "constraints head: stage -1 and layer 6: stage 1" in plan.certificate.space


def test_the_checker_finds_layers_on_other_stages() -> None:
    request = asked(**PIPELINED)
    plan = planned(request)
    broken = check(plan, with_constraints(request, FixedStage("layer", 1, "0-15"), FixedStage("layer", 4, "2")))
    assert [(each.rule, each.where) for each in broken] == [(Rule.SEARCH, "plan.stages[1]"), (Rule.SEARCH, "plan.stages")]
    assert not check(plan, with_constraints(request, FixedStage("embedding", -4), FixedStage("h*", 3)))


def test_only_pipelines_that_have_the_stage_are_left() -> None:
    request = asked(tp=(1,), pp=())
    assert len(layers_of(planned(with_constraints(request, FixedStage("*", 0))))) == 1
    both = FixedStage("layer", 1, "12-31"), FixedStage("head", 1)
    assert len(layers_of(planned(with_constraints(request, *both)))) == 2
    assert len(layers_of(planned(with_constraints(request, FixedStage("layer", -3, "0-1"))))) > 2
    several = replace(request.search, pp=(2, 4), schedules=(Schedule.INTERLEAVED,), virtual_stages=(2,))
    request = replace(request, search=several)
    assert len(layers_of(planned(with_constraints(request, FixedStage("layer", -4, "0"))))) == 4


@pytest.mark.parametrize(
    ("constraints", "pp"),
    [
        ((FixedStage("head", 0),), (4,)),
        ((FixedStage("layer", 1, "20"), FixedStage("layer", 2, "10")), (4,)),
        ((FixedStage("layer", 3, "0-1"),), (8,)),
        ((FixedStage("layer", 9, "20"),), ()),
    ],
    ids=["the last layer first", "the wrong way round", "too few layers before them", "more stages than devices"],
)
def test_stages_that_no_pipeline_can_have_are_said(constraints: tuple[Constraint, ...], pp: tuple[int, ...]) -> None:
    refused = planned(with_constraints(asked(tp=(1,), pp=pp), *constraints))
    assert refused.reason is not None and refused.reason.constraint == "search.constraints"
    assert all(str(each) in refused.reason.message for each in constraints)


def test_launchers_whose_stages_are_cut_evenly_have_what_they_can() -> None:
    """Interleaved stages of Megatron-LM have equal numbers of layers, but for the first and the last."""
    request = asked(**PIPELINED, space=Space.LAUNCHABLE, schedules=(Schedule.INTERLEAVED,), virtual_stages=(2,))
    assert planned(with_constraints(request, FixedStage("layer", 1, "6-7"))).feasible
    refused = planned(with_constraints(request, FixedStage("layer", 1, "6-15")))
    assert refused.reason is not None and refused.reason.constraint == "search.constraints"


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("stages", "sizes"), [((FixedStage("layer", 0, "0-20"), FixedStage("head", 1)), 2), ((FixedStage("layer", -2, "5"),), 3)]
)
def test_stages_that_differ_have_them(stages: tuple[Constraint, ...], sizes: int) -> None:
    small = replace(node_type("dgx-h100"), devices_per_node=2)
    pair = Cluster((NodeGroup("first", small, 1), NodeGroup("second", small, 1)))
    request = replace(REQUEST, model=model("qwen3-0.6b"), cluster=pair)
    request = asked(request=request, tp=(), pp=(sizes,), stage_degrees=StageDegrees.ANY)
    plan = planned(with_constraints(request, *stages))
    assert len(layers_of(plan)) == sizes
    assert {Rule.SEARCH} == {each.rule for each in check(plan, with_constraints(request, FixedStage("layer", 0, "0-27")))}


def test_replicas_of_every_node_group_have_them() -> None:
    (request,) = unequal_requests(1)
    request = replace(request, search=replace(request.search, pp=(2,)))
    fixed = with_constraints(request, FixedStage(request.model.layers[1], 1, "0"))
    free, plan = planned(request), planned(fixed)
    assert isinstance(free.layout, ByGroup) and isinstance(plan.layout, ByGroup)
    assert {each.rule for each in check(free, fixed)} == {Rule.SEARCH}
    for replicas in plan.layout.groups:
        assert any(span.first <= 1 < span.first + span.count for span in replicas.pipelines.stages[1].blocks)


def test_models_that_branch_have_them() -> None:
    """The decoder's layers may lie on any stage behind what they read, and the encoder's on none behind them."""
    request = replace(REQUEST, model=read_huggingface_config(T5, name="t5"), workload=TrainingWorkload("training", 16, 512))
    request = asked(request=request, tp=(1,), pp=(4,))
    decoder, encoder = FixedStage("decoder_embedding", 2), FixedStage("encoder_end", 1)
    free, plan = planned(request), planned(with_constraints(request, decoder, encoder))
    names = request.model.layers
    assert names.index("decoder_embedding") in layers_of(plan)[2] and names.index("encoder_end") in layers_of(plan)[1]
    assert step_s(plan) > step_s(free)
    refused = planned(with_constraints(request, FixedStage("decoder_full", 0), encoder))
    assert refused.reason is not None and refused.reason.constraint == "search.constraints"


ALIKE = ("layer/attn_norm", "layer/o_proj", "layer/mlp_residual")


def test_operators_are_alike_in_one_block_and_in_several() -> None:
    free = planned(REQUEST)
    assert len({shardings(free)[name] for name in ALIKE}) == 2
    plan = planned(with_constraints(REQUEST, AlikeShardings(ALIKE)))
    assert len({shardings(plan)[name] for name in ALIKE}) == 1
    assert step_s(plan) > step_s(free)
    everywhere = AlikeShardings(("*_norm", "head/lm_head"))
    plan = planned(with_constraints(REQUEST, everywhere))
    assert len({strategy for name, strategy in shardings(plan).items() if name.endswith(("_norm", "lm_head"))}) == 1
    assert [each.rule for each in check(free, with_constraints(REQUEST, everywhere))] == [Rule.SEARCH]
    assert "constraints alike *_norm, head/lm_head" in plan.certificate.space


@pytest.mark.parametrize("layout", ["seq", WHOLE, "hidden"])
def test_a_tensor_is_written_as_asked(layout: str) -> None:
    """Partial sums, as of a product along its feed-forward dim, are none of these."""
    request = with_constraints(REQUEST, FixedTensor("layer/mlp_out", layout))
    assert shardings(planned(request))["layer/down_proj"] == layout
    broken = check(planned(REQUEST), request)
    assert [(each.rule, each.where) for each in broken] == [(Rule.SEARCH, "layer/down_proj")]
    assert "partial sums" in broken[0].message


def test_tensors_whose_heads_follow_others_are_split_by_their_own() -> None:
    plan = planned(with_constraints(REQUEST, FixedTensor("layer/k_rot", "kv_heads"), FixedTensor("layer/q_rot", "heads")))
    assert shardings(plan)["layer/rope"] == "heads"


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
        ([FixedSharding("layer/nothing", WHOLE)], "names no operator"),
        ([FixedSharding("*", "vocab")], "does not have"),
        ([FixedSharding(HEAD, "vocab"), FixedSharding("*head*", WHOLE)], "several shardings of head/lm_head"),
        ([FixedTensor("layer/x", WHOLE)], "names no written tensor"),
        ([FixedTensor("layer/mlp_*", "ffn")], "does not have"),
        ([FixedTensor("*/mlp_out", "seq"), FixedTensor("layer/mlp_out", WHOLE)], "several shardings of layer/mlp_out"),
        ([AlikeShardings((HEAD,))], "too few"),
        ([AlikeShardings((HEAD, "layer/nothing"))], "names no operator"),
        ([AlikeShardings((UP, "layer/o_proj", "layer/down_proj"))] * 6, "729 combinations"),
        ([FixedStage("layers", 0)], "names no block"),
        ([FixedStage("layer", 0, "32-40")], "does not have.*0 to 31"),
        ([FixedStage("layer", 34)], "no pipeline of the request has.*0 to 33, or -34 to -1"),
    ],
    ids=str,
)
def test_constraints_that_make_no_sense_are_refused(constraints: list[Constraint], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        with_constraints(REQUEST, *constraints)


@pytest.mark.parametrize("layers", ["15-0", "a", "1-2-3", "-1", "\u0661", "1 "])
def test_what_is_no_range_of_layers_is_refused(layers: str) -> None:
    with pytest.raises(WorkloadError, match="no range of layers"):
        FixedStage("layer", 0, layers)


def every_named_plan(request: TrainingRequest) -> Iterator[Named]:
    """Every plan of a request's space that fits, as its constraints name parts of it."""
    costs, model = TrainingCosts(request), request.model
    for priced in every_fitting_plan(request):
        candidate = priced.decision.candidate
        setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
        found: dict[str, str] = {}
        tensors: dict[str, str] = {}
        for block, choice in zip(costs.block_names, priced.decision.sharding, strict=True):
            problem = costs.problem(block, setting)
            assert problem is not None
            for operator, options, chosen in zip(model.block(block).operators, problem.strategies, choice, strict=True):
                found[f"{block}/{operator.name}"] = options[chosen].name
                for tensor in operator.outputs:
                    spec = options[chosen].output_spec(operator, tensor)
                    tensors[f"{block}/{tensor.name}"] = WHOLE if spec == REPLICATED else str(spec.dim)
        parts = [set(span.numbers) for span in priced.decision.spans]
        stages = [set[int]().union(*(parts[part] for part in of_rank)) for of_rank in positions(candidate)]
        yield Named(priced.cost.step_time_s, found, tensors, stages)


@dataclass(frozen=True)
class Named:
    """The seconds of a plan's step, strategies of operators, layouts in which tensors are written, and layers of stages."""

    step_s: float
    operators: dict[str, str]
    tensors: dict[str, str]
    stages: list[set[int]]

    def keeps(self, constraint: Constraint, names: Sequence[str]) -> bool:
        """True if the plan does what a constraint says, of names without ``*``."""
        match constraint:
            case FixedSharding(operator, sharding):
                return self.operators[operator] == sharding
            case FixedTensor(tensor, sharding):
                return self.tensors[tensor] == sharding
            case AlikeShardings(operators):
                return len({self.operators[name] for name in operators}) == 1
            case FixedStage(block, stage, layers):
                first, last = map(int, str(layers).split("-"))
                mine = [layer for layer, name in enumerate(names) if name == block][first : last + 1]
                return -len(self.stages) <= stage < len(self.stages) and {*mine} <= self.stages[stage]


def drawn(rng: np.random.Generator, plans: Sequence[Named], model: ModelGraph) -> Iterator[Constraint]:
    """One constraint of each kind, of what some plan has or none does."""
    plan = plans[rng.integers(len(plans))]
    operators, tensors = [*plan.operators], [*plan.tensors]
    operator, tensor = rng.choice(operators), rng.choice([name for name in tensors if plan.tensors[name] != "None"])
    yield FixedSharding(str(operator), plan.operators[operator])
    yield FixedTensor(str(tensor), plan.tensors[tensor])
    both = [op for op in operators if "seq" in model.block(op.partition("/")[0]).operator(op.partition("/")[2]).dims]
    yield AlikeShardings(tuple(str(name) for name in rng.choice(both, 2, replace=False)))
    block = str(rng.choice(list(model.layers)))
    first, last = np.sort(rng.integers(0, model.layers.count(block), 2))
    yield FixedStage(block, int(rng.integers(-len(plan.stages), len(plan.stages))), f"{first}-{last}")


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", [18, 2, 3, 11, 12, 13, 16, 20, 22, 25, 26, 27, 30, 32, 34])
def test_plans_are_the_best_that_keep_them(seed: int) -> None:
    """Compared with every plan of a small request: under each kind by itself, and under several."""
    request, rng = random_request(seed), np.random.default_rng(seed)
    whole, names = list(every_named_plan(request)), request.model.layers
    smaller = [replace(request, cluster=part) for part in fewer_nodes(request)]
    plans = [*whole, *(plan for part in smaller for plan in every_named_plan(part))]
    for _ in range(4):
        kinds = list(drawn(rng, whole, request.model))
        for constraints in [*([kind] for kind in kinds), kinds, [kinds[3], kinds[2]]]:
            kept = [plan.step_s for plan in plans if all(plan.keeps(each, names) for each in constraints)]
            plan = planned(with_constraints(request, *constraints))
            assert plan.feasible == bool(kept), (seed, constraints)
            if kept:
                assert step_s(plan) == pytest.approx(min(kept), rel=1e-9), (seed, constraints)
            else:
                assert plan.reason is not None and plan.reason.constraint == "search.constraints"


def test_a_request_document_holds_them() -> None:
    document: dict[str, Any] = {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"catalog": "dgx-h100", "nodes": 1},
        "workload": {"kind": "training", "global_batch": 16, "seq_len": 4096},
        "search": {"constraints": [{"operators": UP, "sharding": WHOLE}]},
    }
    request = resolved(document)
    assert request.search.constraints == (FixedSharding(UP, WHOLE),)
    assert resolved(request_document(request)) == request
    every = (FixedTensor("layer/mlp_out", "seq"), AlikeShardings(ALIKE), FixedStage("layer", -1, "3-5"), FixedStage("head", 1))
    document["search"]["constraints"] = [
        {"tensors": "layer/mlp_out", "sharding": "seq"},
        {"alike": [*ALIKE]},
        {"blocks": "layer", "layers": "3-5", "stage": -1},
        {"blocks": "head", "stage": 1},
    ]
    request = resolved(document)
    assert request.search.constraints == every
    assert resolved(request_document(request)) == request
    document["search"]["pp"] = [1]
    with pytest.raises(DocumentError, match=r"^search: .* stage that no pipeline .* has.*0 to 0"):
        resolved(document)
    document["search"]["constraints"] = [{"blocks": "layer", "layers": "5-3", "stage": 0}]
    with pytest.raises(DocumentError, match=r"^search.constraints.0: a constraint names no range"):
        resolved(document)
    document["search"]["constraints"] = [{"blocks": "layer", "stages": 0}]
    with pytest.raises(DocumentError, match=r"stages"):
        resolved(document)
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
    assert is_like(pattern, f"{block}/{operator}") == _is_like(pattern, f"{block}/{operator}")
