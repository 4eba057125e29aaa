"""Sets of modules that fine-grained recomputation runs again, in the search, the checker and the predictor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.app.requests.named_plans import request_of_name
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import InvalidInputError, PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.recompute import kept_tensors, modules_of, rerunnable
from meshwright.solver.blocks.sharding_problem import Criterion, build_block_problem, with_modules
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.choices import Recompute, Space, TpOverlap
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES, modules_of_words, sets_of
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.space.candidates import families, summary
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.support.requests_given import resolved
from tests.unit.solver.training.planned import planned

LIGHT = Recompute.FINE_GRAINED


def request(*modules: str, name: str = "mixtral-8x7b", **search: object) -> TrainingRequest:
    fields: dict[str, object] = {"tp": (2,), "ep": (8,), "pp": (2,), "microbatch": (1, 2), "zero_stages": (1,)}
    fields |= {"recompute": (LIGHT,), "tp_overlap": (TpOverlap.EXPOSED,)} | search
    asked = Search(**({"etp": fields["tp"]} | fields), recompute_modules=modules)  # type: ignore[arg-type]
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 4),))
    return TrainingRequest(model(name), cluster, TrainingWorkload("training", global_batch=128, seq_len=4096), search=asked)


@pytest.mark.parametrize(
    ("name", "words", "dropped", "again"),
    [
        ("llama-3.1-8b", "mlp", {"gate", "up", "act_out"}, {"gate_up_proj", "act", "down_proj"}),
        (
            "llama-3.1-8b",
            "layernorm+mlp",
            {"attn_normed", "mlp_normed", "gate", "up", "act_out"},
            {"attn_norm", "mlp_norm", "gate_up_proj", "act", "down_proj"},
        ),
        ("llama-3.1-8b", "core_attn", set(), {"attention"}),
        ("mixtral-8x7b", "moe_act", {"experts_act_out"}, {"experts_act"}),
    ],
)
def test_light_modules_give_up_what_they_wrote_and_others_what_they_alone_keep(
    name: str, words: str, dropped: set[str], again: set[str]
) -> None:
    block = next(block for block in model(name).blocks if block.name.startswith("layer"))
    kept = kept_tensors(block, LIGHT, modules=modules_of_words(words))
    assert kept_tensors(block, Recompute.NONE).tensors - kept.tensors == dropped
    assert kept.reruns == again


def test_experts_run_again_with_their_router_and_keep_what_they_read() -> None:
    graph = model("deepseek-v3")
    layer = next(block for block in graph.blocks if any("experts" in op.name for op in block.operators))
    kept = kept_tensors(layer, LIGHT, modules=modules_of_words("moe"))
    assert {"router", "dispatch", "experts_gate_up_proj", "combine"} <= kept.whole
    assert {name for name in kept.tensors if name.startswith("experts") or name == "dispatched"} == set()
    assert "mlp_normed" in kept.tensors
    assert not {"attn_norm", "q_a_proj", "attention"} & kept.reruns


@pytest.mark.parametrize("space", Space)
@pytest.mark.parametrize(("name", "degrees"), [("mixtral-8x7b", {"ep": 4, "tp": 2}), ("deepseek-v2-lite", {"tp": 1, "ep": 8})])
def test_costs_of_modules_follow_from_those_of_the_usual_ones(name: str, degrees: dict[str, int], space: Space) -> None:
    """Property over all sets: the short way gives the costs of the long one."""
    asked = request(name=name, space=space, **{"pp": (1,), **{axis: (degree,) for axis, degree in degrees.items()}})
    costs, seen = TrainingCosts(asked), 0
    candidate = next(next(families(asked)).candidates())
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    for words in filter(None, sets_of(modules_of(asked.model), ("any", "core_attn"))):
        named = replace(setting, modules=modules_of_words(words))
        for block in asked.model.blocks:
            usual, whole = (build_block_problem(asked.model, block, each) for each in (setting, named))
            assert usual is not None and whole is not None
            short = with_modules(asked.model, block, named, usual)
            for mine, other in zip(short.problem.node_costs, whole.problem.node_costs, strict=True):
                assert mine == pytest.approx(other, rel=1e-12, abs=1e-12)
            for edge, other_edge in zip(short.problem.edges, whole.problem.edges, strict=True):
                assert np.array_equal(edge.cost, other_edge.cost)
            seen += any((node[:, Criterion.FINE_GRAINED_S] > 0).any() for node in whole.problem.node_costs)
    assert seen > 5


def test_what_is_sent_inside_a_module_is_sent_again() -> None:
    asked = request("mlp", name="llama-3.1-8b", ep=(), pp=(1,))
    costs = TrainingCosts(asked)
    light = (each for family in families(asked) for each in family.candidates() if each.boundary.dim is not None)
    candidate = next(each for each in light if each.choices.recompute_modules == "mlp")
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    built = build_block_problem(asked.model, asked.model.block("layer"), setting)
    assert built is not None
    names = [operator.name for operator in asked.model.block("layer").operators]
    sent = {names[edge.source]: edge.cost[..., Criterion.FINE_GRAINED_S].max() for edge in built.problem.edges}
    assert sent["mlp_norm"] > 0, "the product behind the norm gathers its rows"
    assert sent["down_proj"] > 0, "sums are scattered"
    assert sent["o_proj"] == 0


def test_any_set_competes_and_the_best_is_planned_checked_and_predicted() -> None:
    usual, best = planned(request()), planned(request("any"))
    assert usual.predicted is not None and best.predicted is not None
    assert flat(usual).stages[0].recompute_modules is None
    assert {stage.recompute_modules for stage in flat(best).stages} == {"layernorm"}
    assert best.predicted.step_time_s < usual.predicted.step_time_s
    again = predict_training(request("any"), best)
    assert again.predicted is not None
    assert again.predicted.step_time_s == pytest.approx(best.predicted.step_time_s, rel=1e-12)
    named = planned(request("layernorm"))
    assert named.predicted is not None and named.predicted.step_time_s == best.predicted.step_time_s
    assert any(violation.rule is Rule.SEARCH for violation in check(best, request("moe_act")))


def test_the_checker_counts_modules_by_itself() -> None:
    asked = request("layernorm+mlp", name="llama-3.1-8b", tp=(1,), ep=(), pp=(1,), recompute=(LIGHT,))
    plan = planned(asked)
    every = replace(asked, search=replace(asked.search, recompute_modules=("any",)))
    for words, rule in (("layernorm", Rule.ACTIVATIONS), ("mlp+layernorm", Rule.STAGES), (None, Rule.ACTIVATIONS)):
        stages = tuple(replace(stage, recompute_modules=words) for stage in flat(plan).stages)
        assert rule in {violation.rule for violation in check(with_fields(plan, stages=stages), every)}


def test_exchanges_that_run_again_hide_under_no_other_pass() -> None:
    asked = request("moe", "moe_act", expert_overlap=("exposed", "batch"), pp=(1,), schedules=())
    found = [each for family in families(asked) for each in family.candidates() if each.recompute == (LIGHT,)]
    paired = {each.choices.recompute_modules: set[bool]() for each in found}
    for each in found:
        paired[each.choices.recompute_modules].add(each.paired > 0)
    assert paired == {"moe": {False}, "moe_act": {False, True}}


def test_names_of_candidates_say_their_modules() -> None:
    asked = request("any")
    found = (each for family in families(asked) for each in family.candidates())
    name = summary(next(each for each in found if each.choices.recompute_modules == "moe"))
    assert "recompute fine-grained of moe," in f"{name},"
    named = request_of_name(asked, name)
    assert isinstance(named, TrainingRequest)
    assert (named.search.recompute, named.search.recompute_modules) == ((LIGHT,), ("moe",))


def test_other_names_and_modules_that_a_model_lacks_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no module.*'?mpl'?.*layernorm, moe_act"):
        Search(recompute_modules=("mpl",))
    assert Search(recompute_modules=("mlp+layernorm",)).recompute_modules == ("layernorm+mlp",)
    with pytest.raises(WorkloadError, match=r"the model has no such modules.*; given: 'mlp'"):
        planned(request("mlp"))
    plan = planned(request("moe_act"))
    first, *others = flat(plan).stages
    unlike = with_fields(plan, stages=(replace(first, recompute_modules="layernorm"), *others))
    with pytest.raises(PlanFileError, match="recompute_modules can't be"):
        predict_training(request("any"), unlike)


def test_any_leaves_out_what_saves_no_more() -> None:
    sets = sets_of(modules_of(model("mixtral-8x7b")), ("any",))
    assert sets[0] is None
    assert {*sets[1:]} == {"layernorm", "moe_act", "moe", "layernorm+moe"}


def test_megatron_cores_words_are_modes_or_sets() -> None:
    assert StageChoices.of_modules(("core_attn", "layernorm")) == (Recompute.SELECTIVE, StageChoices())
    mode, choices = StageChoices.of_modules(("mlp", "core_attn"))
    assert (mode, choices.recompute_modules, choices.of_layers) == (LIGHT, "core_attn+mlp", " of core_attn+mlp")
    assert choices.under(Recompute.FULL) == StageChoices() == choices.under(Recompute.NONE)
    assert StageChoices().modules == USUAL_MODULES
    assert choices.restricted(Search()).recompute_modules == ("core_attn+mlp",)


def of_operators(*modules: str, **search: object) -> TrainingRequest:
    """A request of the free space on which memory binds a little."""
    fields: dict[str, object] = {"space": Space.FREE, "tp": (2,), "pp": (1,), "cp": (1,), "microbatch": (1,)}
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 1),))
    workload = TrainingWorkload("training", global_batch=64, seq_len=16384)
    fields |= {"recompute": (Recompute.NONE, LIGHT), "tp_overlap": (TpOverlap.EXPOSED,)}
    asked = Search(**(fields | search), recompute_modules=modules)  # type: ignore[arg-type]
    return TrainingRequest(model("llama-3.1-8b"), cluster, workload, search=asked)


def test_single_operators_run_again_where_it_takes_less_time() -> None:
    usual, asked = planned(of_operators()), of_operators("operators")
    plan = planned(asked)
    assert tokens_per_s(plan) > 1.001 * tokens_per_s(usual)
    (stage,) = flat(plan).stages
    assert stage.recompute is LIGHT and stage.recompute_modules == "layer/rope"
    assert tokens_per_s(planned(of_operators("layer/rope"))) == tokens_per_s(plan)
    assert flat(predict_training(asked, plan)).stages[0].recompute_modules == "layer/rope"
    assert Rule.SEARCH in broken(plan, of_operators("layernorm"))
    assert "recompute_modules operators" in plan.certificate.space


@pytest.mark.parametrize("words", ["layer/embed", "head/final_norm", "layer/rope+layer/act", "rope"])
def test_the_checker_refuses_operators_that_are_none_of_a_layer(words: str) -> None:
    asked = of_operators("operators")
    plan = planned(asked)
    (stage,) = flat(plan).stages
    assert Rule.STAGES in broken(with_fields(plan, stages=(replace(stage, recompute_modules=words),)), asked)


def test_what_goes_to_experts_and_back_does_not_go_again_by_itself() -> None:
    layer = next(block for block in model("mixtral-8x7b").blocks if block.name.startswith("layer"))
    single = rerunnable(layer)
    assert "layer/experts_act" in single and not {"layer/dispatch", "layer/combine"} & {*single}
    plan = planned(request("moe_act", space=Space.FREE))
    stages = tuple(replace(each, recompute_modules="layer/combine") for each in flat(plan).stages)
    assert Rule.STAGES in broken(with_fields(plan, stages=stages), request("operators", space=Space.FREE))


def test_no_launcher_runs_single_operators_again() -> None:
    with pytest.raises(WorkloadError, match=r"no such operators"):
        planned(request("layer/experts_act"))
    assert not any("/" in (family.modules or "") for family in families(request("operators")))


def test_sets_of_very_many_operators_are_refused() -> None:
    asked = of_operators("operators")
    layer = asked.model.block("layer")
    read = layer.operators[0].inputs[0]
    more = (
        Operator(f"more{n}", OperatorKind.ELEMENTWISE, (read,), (replace(read, name=f"side{n}"),), flops_per_element=1.0)
        for n in range(60)
    )
    longer = replace(layer, operators=(*layer.operators, *more))
    blocks = tuple(longer if block == layer else block for block in asked.model.blocks)
    with pytest.raises(WorkloadError, match="a block of 71 operators"):
        planned(replace(asked, model=replace(asked.model, blocks=blocks)))


def test_requests_may_name_as_many_operators_as_plans_do() -> None:
    words = "+".join(f"layer/operator_{number}" for number in range(64))
    asked = of_operators(words)
    assert resolved(request_document(asked)).search.recompute_modules == asked.search.recompute_modules


def broken(plan: Plan, asked: TrainingRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, asked)}


def tokens_per_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.tokens_per_s is not None
    return plan.predicted.tokens_per_s
