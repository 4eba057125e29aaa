"""The checker accepts plans worked out by hand, and finds each single thing that is broken in them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.app.models import catalog
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Band, Status
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, OperatorSharding
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import MAX_LAYERS, Block, BlockRun, ModelGraph
from meshwright.solver.problem.request import PlanRequest, Slo, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.verify.changes import at, changed
from tests.unit.solver.verify.plans import (
    COUNTED,
    cluster,
    infeasible_plan,
    model,
    serving_plan,
    training_plan,
    training_request,
)

ADAM_STATE = 12.0


def rules(plan: Plan, request: PlanRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}


def rebalanced(plan: Plan) -> Plan:
    """The plan with its peak memory as its stages say."""
    return changed(plan, "predicted.peak_memory_bytes", max(stage.memory.total_bytes for stage in flat(plan).stages))


def with_strategies(plan: Plan, **strategies: str) -> Plan:
    """The plan with other strategies for some operators."""
    return with_fields(
        plan,
        shardings=tuple(
            replace(entry, strategy=strategies.get(entry.operator, entry.strategy)) for entry in flat(plan).shardings
        ),
    )


def every_stage(plan: Plan, path: str, value: object) -> Plan:
    for index in range(len(flat(plan).stages)):
        plan = changed(plan, f"stages.{index}.{path}", value)
    return plan


def test_a_correct_plan_is_accepted() -> None:
    assert check(training_plan(), training_request()) == ()


def test_an_infeasible_answer_is_accepted() -> None:
    assert check(infeasible_plan(), training_request()) == ()


def test_violations_name_rule_and_place() -> None:
    plan = changed(changed(training_plan(), "stages.0.in_flight", 1), "predicted.mfu", 0.9)
    text = [str(violation) for violation in check(plan, training_request())]
    assert text[0].startswith("in_flight at plan.stages[0]: 1 micro-batches in flight")
    assert text[-1].startswith("mfu at plan.predicted.mfu: 0.9")


MUTATIONS: list[tuple[str, object, set[Rule]]] = [
    ("predicted.tokens_per_s", math.nan, {Rule.NUMBERS}),
    ("stages.1.time_s", math.inf, {Rule.NUMBERS}),
    ("stages.1.memory.overhead_bytes", -1.0, {Rule.NUMBERS}),
    ("breakdown.bubble_s", -0.5, {Rule.NUMBERS}),
    ("kind", "serving", {Rule.KIND}),
    ("model", "another", {Rule.KIND}),
    ("layout", None, {Rule.ANSWER}),
    ("layout", serving_plan().layout, {Rule.KIND}),
    ("breakdown", None, {Rule.ANSWER}),
    ("predicted.step_time_s", None, {Rule.ANSWER}),
    ("certificate.status", Status.INFEASIBLE, {Rule.CERTIFICATE}),
    ("certificate.objective", 14.0, {Rule.CERTIFICATE}),
    ("certificate.bound", 14.6, {Rule.CERTIFICATE}),
    ("certificate.bound", 14.0, {Rule.CERTIFICATE}),
    ("certificate.bound", None, {Rule.CERTIFICATE}),
    ("certificate.gap", 0.1, {Rule.CERTIFICATE}),
    ("stages.0.blocks.0.count", 2, {Rule.LAYERS}),
    ("stages.0.blocks.1.count", 1, {Rule.LAYERS}),
    ("stages.1.blocks.0.first", 2, {Rule.LAYERS}),
    ("stages.1.blocks.0.block", "head", {Rule.LAYERS}),
    ("stages.1.blocks", (LayerSpan("layer", 3, 2),), {Rule.LAYERS}),
    ("stages.1.blocks", (), {Rule.LAYERS}),
    ("axes.pp", 1, {Rule.STAGES, Rule.AXES}),
    ("stages.1.axes.tp", 4, {Rule.AXES, Rule.DEVICES}),
    ("axes.ep", 2, {Rule.AXES}),
    ("schedule", "gpipe", {Rule.IN_FLIGHT, Rule.ACTIVATIONS, Rule.LAUNCHER}),
    ("stages.1.devices", (DeviceRange(5, 4),), {Rule.DEVICES}),
    ("stages.1.devices", (DeviceRange(0, 4),), {Rule.DEVICES}),
    ("stages.1.devices", (DeviceRange(4, 3),), {Rule.DEVICES}),
    ("stages.1.devices", (), {Rule.DEVICES}),
    ("devices", 4, {Rule.DEVICES}),
    ("devices", 16, {Rule.DEVICES}),
    ("microbatch.size", 2, {Rule.BATCH}),
    ("microbatch.count", 3, {Rule.BATCH}),
    ("stages.0.zero_stage", 4, {Rule.ZERO}),
    ("stages.0.in_flight", 1, {Rule.IN_FLIGHT}),
    ("stages.0.recompute", Recompute.FULL, {Rule.LAUNCHER, Rule.ACTIVATIONS, Rule.TRANSIENT}),
    ("stages.0.zero_stage", 0, {Rule.LAUNCHER, Rule.OPTIMIZER}),
    ("stages.0.memory.weights_bytes", 1183.0, {Rule.WEIGHTS, Rule.PEAK_MEMORY}),
    ("stages.0.memory.gradients_bytes", 2369.0, {Rule.GRADIENTS, Rule.PEAK_MEMORY}),
    ("stages.0.memory.optimizer_bytes", 3551.0, {Rule.OPTIMIZER, Rule.PEAK_MEMORY}),
    ("stages.0.memory.activations_bytes", 5119.0, {Rule.ACTIVATIONS, Rule.PEAK_MEMORY}),
    ("stages.1.memory.transient_bytes", 511.0, {Rule.TRANSIENT}),
    ("stages.1.memory.capacity_bytes", 80_000.0, {Rule.USABLE}),
    ("stages.0.memory.overhead_bytes", 60_000.0, {Rule.CAPACITY, Rule.PEAK_MEMORY}),
    ("predicted.peak_memory_bytes", 13_000.0, {Rule.PEAK_MEMORY}),
    ("stages.0.time_s", 2.1, {Rule.STEP_TIME}),
    ("stages.0.time_s", 0.5, {Rule.STEP_TIME, Rule.STAGE_TIME}),
    ("stages.0.extra_s", 0.6, {Rule.STEP_TIME}),
    ("breakdown.compute_s", 8.5, {Rule.BREAKDOWN}),
    ("predicted.tokens_per_s", 9.0, {Rule.TOKENS, Rule.COST}),
    ("predicted.mfu", 0.2, {Rule.MFU}),
    ("predicted.mfu", None, {Rule.MFU}),
    ("predicted.cost_per_million_tokens", 1.0, {Rule.COST}),
    ("predicted.bands", {"step_time_s": Band(15.0, 14.0, "paper")}, {Rule.BANDS}),
    ("sequence_parallel", False, {Rule.SHARDING}),
]


@pytest.mark.parametrize(("path", "value", "broken"), MUTATIONS)
def test_one_broken_thing_breaks_its_own_rules(path: str, value: object, broken: set[Rule]) -> None:
    plan = changed(training_plan(), path, value)
    assert rules(plan, training_request()) == broken


EXACT = [
    "certificate.objective",
    "predicted.tokens_per_s",
    "predicted.peak_memory_bytes",
    "predicted.mfu",
    "predicted.cost_per_million_tokens",
    "breakdown.bubble_s",
    *(
        f"stages.{stage}.{name}"
        for stage in range(2)
        for name in (
            "time_s",
            "memory.weights_bytes",
            "memory.gradients_bytes",
            "memory.optimizer_bytes",
            "memory.activations_bytes",
            "memory.capacity_bytes",
        )
    ),
]


@pytest.mark.parametrize("path", EXACT)
@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
def test_figures_that_follow_from_others_leave_no_slack(path: str, factor: float) -> None:
    figure = at(training_plan(), path)
    assert isinstance(figure, float)
    assert check(changed(training_plan(), path, figure * factor), training_request())
    assert not check(changed(training_plan(), path, figure * (1 + 1e-13)), training_request())


@pytest.mark.parametrize(
    ("path", "value", "broken"),
    [
        ("certificate.status", Status.FEASIBLE, Rule.CERTIFICATE),
        ("certificate.objective", 1.0, Rule.CERTIFICATE),
        ("predicted", training_plan().predicted, Rule.ANSWER),
        ("reason", None, Rule.REASON),
        ("reason.need", 80.0, Rule.REASON),
    ],
)
def test_infeasible_answers_say_why_and_claim_nothing(path: str, value: object, broken: Rule) -> None:
    assert rules(changed(infeasible_plan(), path, value), training_request()) == {broken}


def test_a_given_plan_may_claim_no_bound_but_not_half_of_one() -> None:
    plan = changed(changed(training_plan(), "certificate.status", Status.FEASIBLE), "certificate.bound", None)
    assert rules(plan, training_request()) == {Rule.CERTIFICATE}
    assert not check(changed(plan, "certificate.gap", None), training_request())


SHARDINGS: list[tuple[dict[str, str], set[Rule]]] = [
    ({"norm": "replicate"}, {Rule.SHARDING}),
    ({"norm": "hidden"}, {Rule.SHARDING}),
    ({"attention": "seq"}, {Rule.SHARDING}),
    ({"qkv": "kv_heads"}, {Rule.SHARDING}),
    ({"qkv": "replicate"}, {Rule.SHARDING}),
    ({"down": "hidden"}, {Rule.SHARDING}),
    ({"act": "batch"}, {Rule.SHARDING}),
    ({"loss": "no_such_dim"}, {Rule.SHARDING}),
]


@pytest.mark.parametrize(("strategies", "broken"), SHARDINGS)
def test_strategies_that_no_launcher_has(strategies: dict[str, str], broken: set[Rule]) -> None:
    assert rules(with_strategies(training_plan(), **strategies), training_request()) == broken


@pytest.mark.parametrize(("operator", "dim"), [("norm", "hidden"), ("attention", "seq"), ("add", "heads"), ("loss", "hidden")])
def test_strategies_that_change_the_result_are_refused_in_the_free_space_too(operator: str, dim: str) -> None:
    request = training_request(search=Search(space=Space.FREE))
    assert rules(with_strategies(training_plan(), **{operator: dim}), request) == {Rule.SHARDING}


def test_norms_of_key_value_heads_stay_with_their_heads() -> None:
    search = Search(tp=(2,), pp=(1,), zero_stages=(1,), microbatch=(1,), recompute=(Recompute.NONE,))
    two = Cluster((NodeGroup("a", part_of_node(node_type("dgx-h100"), 2), 1),))
    request = replace(training_request(search=search), model=catalog.model("qwen3-0.6b"), cluster=two)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert {entry.strategy for entry in flat(plan).shardings if entry.operator == "k_norm"} == {"kv_heads"}
    assert not check(plan, request)
    for strategy, broken in (("seq", Rule.SHARDING), ("replicate", Rule.SHARDING), ("head_dim", Rule.SHARDING)):
        assert broken in rules(with_strategies(plan, k_norm=strategy), request), strategy
    for heads in (1, 3):
        other = replace(request, model=replace(request.model, dims=request.model.dims | {"kv_heads": heads}))
        assert Rule.DIVISIBILITY in rules(plan, other), heads


def test_every_operator_has_one_strategy() -> None:
    plan, request = training_plan(), training_request()
    assert rules(with_fields(plan, shardings=flat(plan).shardings[1:]), request) == {Rule.SHARDING}
    assert rules(with_fields(plan, shardings=(*flat(plan).shardings, flat(plan).shardings[0])), request) == {Rule.SHARDING}
    assert rules(with_fields(plan, shardings=(*flat(plan).shardings, OperatorSharding("layer", "ghost", "seq"))), request) == {
        Rule.SHARDING
    }


@pytest.mark.parametrize("dims", [{"heads": 5}, {"ffn": 15}, {"kv_heads": 3}])
def test_dims_divide_by_tp(dims: dict[str, int]) -> None:
    assert rules(training_plan(), training_request(model=model(None, None, **dims))) == {Rule.DIVISIBILITY}


def test_only_megatron_pads_the_vocabulary() -> None:
    odd = training_request(model=model(vocab=31))
    # Half of 31, rounded up, is half of the 32 that the plan counts.
    assert not {Rule.DIVISIBILITY, Rule.WEIGHTS, Rule.ACTIVATIONS} & rules(training_plan(), odd)
    other = replace(odd, search=Search(launcher=Launcher.TORCHTITAN))
    assert rules(training_plan(), other) == {Rule.DIVISIBILITY}


def test_sequence_parallel_needs_tokens_that_divide() -> None:
    request = training_request(workload=TrainingWorkload("training", global_batch=8, seq_len=15, implementation=COUNTED))
    assert Rule.SEQUENCE in rules(training_plan(), request)


def test_ring_attention_needs_two_chunks_a_rank() -> None:
    plan = every_stage(changed(training_plan(), "axes.cp", 2), "axes.cp", 2)
    plan = every_stage(changed(plan, "axes.dp", 1), "axes.dp", 1)
    plan = changed(plan, "microbatch.count", 8)
    good = training_request()
    assert not {Rule.SEQUENCE, Rule.BATCH, Rule.DEVICES, Rule.AXES} & rules(plan, good)
    assert rules(
        plan, replace(good, workload=TrainingWorkload("training", global_batch=8, seq_len=18, implementation=COUNTED))
    ) == {Rule.SEQUENCE}


def test_a_model_without_attention_has_no_context_parallelism() -> None:
    plan = every_stage(changed(training_plan(), "axes.cp", 2), "axes.cp", 2)
    plan = every_stage(changed(plan, "axes.dp", 1), "axes.dp", 1)
    plan = changed(plan, "microbatch.count", 8)
    whole = model()
    layer = whole.block("layer")
    kept = tuple(operator for operator in layer.operators if operator.name != "attention")
    blocks = tuple(Block("layer", kept, layer.output) if block is layer else block for block in whole.blocks)
    bare = ModelGraph("tiny", whole.dims, blocks, whole.chain)
    assert rules(plan, training_request(model=bare)) == {Rule.SEQUENCE}


RESTRICTIONS = [
    Search(dp=(4,)),
    Search(tp=(1, 4)),
    Search(pp=(1,)),
    Search(cp=(2,)),
    Search(microbatch=(2,)),
    Search(recompute=(Recompute.FULL,)),
    Search(zero_stages=(0,)),
]


@pytest.mark.parametrize("search", RESTRICTIONS)
def test_restrictions_of_the_search_bind(search: Search) -> None:
    assert rules(training_plan(), training_request(search=search)) == {Rule.SEARCH}


def test_restrictions_that_the_plan_keeps_are_no_trouble() -> None:
    search = Search(dp=(2,), tp=(2, 4), pp=(2,), cp=(1,), microbatch=(1,), recompute=(Recompute.NONE,), zero_stages=(1,))
    assert not check(training_plan(), training_request(search=search))


def run_step_by_step(plan: Plan) -> Plan:
    """The plan in PyTorch's own modules: a norm keeps an fp32 copy of x, 256 bytes, and the normed rows, 128, not x itself."""
    plan = changed(plan, "stages.0.memory.activations_bytes", 2.0 * 2 * 1536)
    return rebalanced(changed(plan, "stages.1.memory.activations_bytes", 2.0 * 1536 + 1152))


def zero_plan(stage: int) -> Plan:
    """The plan under another ZeRO stage, two shards."""
    plan = every_stage(training_plan(), "zero_stage", stage)
    plan = every_stage(plan, "memory.weights_bytes", 2.0 * 592 / (2 if stage == 3 else 1))
    plan = every_stage(plan, "memory.gradients_bytes", 4.0 * 592 / (2 if stage >= 2 else 1))
    plan = every_stage(plan, "memory.optimizer_bytes", ADAM_STATE * 592 / (2 if stage >= 1 else 1))
    plan = run_step_by_step(plan)
    # A layer's gradients are whole while it runs, and its weights: 232 parameters.
    whole = {0: 0.0, 1: 0.0, 2: 4.0 * 232, 3: 6.0 * 232}[stage]
    plan = changed(plan, "stages.0.memory.transient_bytes", whole)
    plan = changed(plan, "stages.1.memory.transient_bytes", max(512.0, whole))
    return rebalanced(plan)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_divides_state_and_needs_room_for_whole_layers(stage: int) -> None:
    request = training_request(search=Search(launcher=Launcher.TORCHTITAN))
    assert not check(zero_plan(stage), request)
    starved = rebalanced(changed(zero_plan(stage), "stages.0.memory.transient_bytes", 0.0))
    assert rules(starved, request) == ({Rule.TRANSIENT} if stage >= 2 else set())


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.DEEPSPEED])
def test_zero_2_goes_with_no_pipeline_of_these_launchers(launcher: Launcher) -> None:
    assert Rule.LAUNCHER in rules(zero_plan(2), training_request(search=Search(launcher=launcher)))


def test_launchers_refuse_what_they_do_not_have() -> None:
    plan, deepspeed = training_plan(), training_request(search=Search(launcher=Launcher.DEEPSPEED))
    assert rules(run_step_by_step(plan), deepspeed) == {Rule.LAUNCHER}
    assert rules(plan, training_request(search=Search(launcher=Launcher.VLLM))) == {Rule.LAUNCHER}


@pytest.mark.parametrize("launcher", [Launcher.TORCHTITAN, Launcher.DEEPSPEED])
def test_only_megatron_copies_key_value_heads(launcher: Launcher) -> None:
    few = training_request(model=model(kv_heads=1))
    assert Rule.LAUNCHER not in rules(training_plan(), few)
    broken = check(training_plan(), replace(few, search=Search(launcher=launcher)))
    assert "plan.axes.tp" in {violation.where for violation in broken if violation.rule is Rule.LAUNCHER}


def recompute_plan(mode: Recompute) -> Plan:
    """The plan under another recompute mode. Selective and fine-grained drop n, 128 bytes; full keeps x alone: 128 bytes."""
    kept = {
        Recompute.NONE: 1280.0,
        Recompute.FINE_GRAINED: 1152.0,
        Recompute.SELECTIVE: 1152.0,
        Recompute.FULL: 128.0,
    }[mode]
    plan = every_stage(training_plan(), "recompute", mode)
    plan = changed(plan, "stages.0.memory.activations_bytes", 2 * 2 * kept)
    plan = changed(plan, "stages.1.memory.activations_bytes", 2 * kept + 1152)
    plan = changed(plan, "stages.0.memory.transient_bytes", 1280 - kept)
    return rebalanced(changed(plan, "stages.1.memory.transient_bytes", max(512.0, 1280 - kept)))


@pytest.mark.parametrize("mode", list(Recompute))
def test_recompute_modes_keep_what_they_say(mode: Recompute) -> None:
    assert not check(recompute_plan(mode), training_request())


def test_stages_may_recompute_differently_in_the_free_space_only() -> None:
    plan, full = training_plan(), recompute_plan(Recompute.FULL)
    mixed = rebalanced(with_fields(plan, stages=(flat(full).stages[0], flat(plan).stages[1])))
    assert not check(mixed, training_request(search=Search(space=Space.FREE)))
    assert rules(mixed, training_request()) == {Rule.LAUNCHER}


def test_without_sequence_parallelism_norms_are_whole() -> None:
    strategies = {"norm": "replicate", "add": "replicate", "add2": "replicate"}
    plan = with_fields(with_strategies(training_plan(), **strategies), sequence_parallel=False)
    # x, n and s double: 3 x 128 bytes more a layer, and 128 more for the head's x.
    plan = changed(plan, "stages.0.memory.activations_bytes", 2.0 * 2 * 1664)
    plan = rebalanced(changed(plan, "stages.1.memory.activations_bytes", 2.0 * 1664 + 1280))
    assert not check(plan, training_request())


def test_few_key_value_heads_are_copied_to_every_rank() -> None:
    """One key/value head on two tp ranks: 16 parameters each for its keys and values, as with two heads on two ranks."""
    request = training_request(model=model(kv_heads=1))
    assert not {Rule.WEIGHTS, Rule.ACTIVATIONS} & rules(training_plan(), request)


def test_fp32_has_no_master_copy() -> None:
    workload = TrainingWorkload("training", global_batch=8, seq_len=16, precision=DType.FP32, implementation=COUNTED)
    plan = every_stage(training_plan(), "memory.weights_bytes", 4.0 * 592)
    plan = every_stage(plan, "memory.optimizer_bytes", 8.0 * 592 / 2)
    plan = changed(plan, "stages.0.memory.activations_bytes", 2 * 2.0 * 2 * 1280)
    plan = changed(plan, "stages.1.memory.activations_bytes", 2 * (2.0 * 1280 + 128) + 1024)
    plan = rebalanced(changed(plan, "stages.1.memory.transient_bytes", 1024.0))
    assert not check(plan, training_request(workload=workload))


def test_a_tied_head_on_another_stage_keeps_its_own_copy() -> None:
    tied = training_request(model=model(tied="embedding/embed/weight"))
    assert not check(training_plan(), tied)
    without = rebalanced(changed(training_plan(), "stages.1.memory.weights_bytes", 2.0 * (592 - 128)))
    assert rules(without, tied) == {Rule.WEIGHTS}


def test_tied_weights_are_split_alike() -> None:
    request = training_request(model=model(tied="embedding/embed/weight"), search=Search(space=Space.FREE))
    assert rules(with_strategies(training_plan(), embed="hidden"), request) == {Rule.TIED}


def test_torchtitan_ties_no_weights_of_two_stages() -> None:
    request = training_request(model=model(tied="embedding/embed/weight"), search=Search(launcher=Launcher.TORCHTITAN))
    assert rules(run_step_by_step(training_plan()), request) == {Rule.LAUNCHER}


def test_frameworks_that_run_step_by_step_keep_copies() -> None:
    torchtitan = training_request(search=Search(launcher=Launcher.TORCHTITAN))
    assert rules(training_plan(), torchtitan) == {Rule.ACTIVATIONS}
    assert not check(run_step_by_step(training_plan()), torchtitan)
    assert rules(run_step_by_step(training_plan()), training_request()) == {Rule.ACTIVATIONS}


@pytest.mark.parametrize("slo", [Slo(max_step_time_s=14.0), Slo(min_tokens_per_s=9.0)])
def test_a_broken_slo_is_found(slo: Slo) -> None:
    assert rules(training_plan(), training_request(slo=slo)) == {Rule.SLO}


@pytest.mark.parametrize("slo", [Slo(max_step_time_s=14.5), Slo(min_tokens_per_s=8.0)])
def test_a_kept_slo_is_no_trouble(slo: Slo) -> None:
    assert not check(training_plan(), training_request(slo=slo))


def test_the_smallest_device_of_a_stage_decides_its_capacity() -> None:
    small, large = cluster(nodes=1, memory_bytes=70_000), cluster(nodes=1)
    groups = (replace(small.groups[0], name="small"), large.groups[0])
    request = training_request(cluster=replace(large, groups=groups))
    violations = check(training_plan(), request)
    assert [(v.rule, v.where) for v in violations] == [(Rule.USABLE, "plan.stages[0].memory.capacity_bytes")]


def single_stage_plan() -> Plan:
    """All layers on one stage of dp 4, tp 2; figures of the two-stage plan."""
    plan = training_plan()
    axes = Axes(dp=4, tp=2, pp=1)
    blocks = (LayerSpan("embedding", 0, 1), LayerSpan("layer", 1, 4), LayerSpan("head", 5, 1))
    stage = replace(flat(plan).stages[0], blocks=blocks, devices=(DeviceRange(0, 8),), axes=axes)
    return with_fields(plan, axes=axes, stages=(stage,), microbatch=Microbatch(1, 2))


def test_a_tied_head_beside_the_embedding_stores_nothing() -> None:
    tied = training_request(model=model(tied="embedding/embed/weight"))
    plan = changed(single_stage_plan(), "stages.0.memory.weights_bytes", 2.0 * (128 + 4 * 232))
    assert Rule.WEIGHTS not in rules(plan, tied)
    assert Rule.WEIGHTS in rules(plan, training_request())


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.DEEPSPEED])
def test_zero_2_without_a_pipeline_is_fine(launcher: Launcher) -> None:
    strategies = {"norm": "replicate", "add": "replicate", "add2": "replicate"}
    plan = with_fields(with_strategies(single_stage_plan(), **strategies), sequence_parallel=False)
    broken = rules(changed(plan, "stages.0.zero_stage", 2), training_request(search=Search(launcher=launcher)))
    assert Rule.WEIGHTS in broken
    assert Rule.LAUNCHER not in broken


def test_one_rank_has_no_axis_to_shard_over() -> None:
    plan = every_stage(changed(training_plan(), "axes.tp", 1), "axes.tp", 1)
    plan = every_stage(changed(plan, "axes.dp", 4), "axes.dp", 4)
    plan = changed(with_fields(plan, sequence_parallel=False), "microbatch.count", 2)
    messages = {violation.message for violation in check(plan, training_request())}
    assert "shards 'heads' over a tp axis of one rank" in messages


def test_few_micro_batches_fill_no_pipeline() -> None:
    request = training_request(workload=TrainingWorkload("training", global_batch=2, seq_len=16, implementation=COUNTED))
    assert Rule.IN_FLIGHT in rules(changed(training_plan(), "microbatch.count", 1), request)


def test_the_free_space_may_split_the_residual_stream_by_hidden() -> None:
    strategies = {"norm": "replicate", "add": "replicate", "add2": "replicate"}
    plan = with_fields(with_strategies(training_plan(), **strategies), sequence_parallel=False)
    # n and s double to 256 bytes, x stays at 128: 1536 bytes a layer, 1152 for the head.
    plan = changed(plan, "stages.0.memory.activations_bytes", 2.0 * 2 * 1536)
    plan = rebalanced(changed(plan, "stages.1.memory.activations_bytes", 2.0 * 1536 + 1152))
    assert not check(plan, training_request(search=Search(space=Space.FREE)))
    assert rules(plan, training_request()) == {Rule.ACTIVATIONS}


def test_what_later_stages_add_hides_behind_earlier_ones() -> None:
    """3 s on the second stage start 2 s into the step: sum 5, three times the slowest 9, and 1 that shows."""
    plan = changed(changed(training_plan(), "stages.1.extra_s", 3.0), "predicted.step_time_s", 15.0)
    plan = changed(changed(plan, "certificate.objective", 15.0), "certificate.bound", 15.0)
    assert Rule.STEP_TIME not in rules(plan, training_request())


def test_optimal_means_no_gap() -> None:
    plan = changed(changed(training_plan(), "certificate.bound", 13.05), "certificate.gap", 0.1)
    assert [v.where for v in check(plan, training_request())] == ["plan.certificate.status"]
    assert not check(changed(plan, "certificate.status", Status.FEASIBLE), training_request())


def test_a_bubble_of_rounding_noise_is_no_negative_time() -> None:
    plan = changed(changed(training_plan(), "breakdown.bubble_s", -1e-12), "breakdown.compute_s", 10.5)
    assert not check(plan, training_request())


def test_the_deepest_model_is_checked_too() -> None:
    whole = model()
    chain = (BlockRun("embedding"), BlockRun("layer", MAX_LAYERS - 2), BlockRun("head"))
    deep = ModelGraph("tiny", whole.dims, whole.blocks, chain)
    blocks = (LayerSpan("layer", 3, MAX_LAYERS - 4), LayerSpan("head", MAX_LAYERS - 1, 1))
    plan = changed(training_plan(), "stages.1.blocks", blocks)
    assert Rule.WEIGHTS in rules(plan, training_request(model=deep))
