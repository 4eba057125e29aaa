"""Plans of models that branch: equal to every split tried, and the checker sees what such plans can get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.models import catalog
from meshwright.app.requests.files import read_request
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import LayerSpan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph
from meshwright.solver.problem.layer_dag import layer_dag
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, StageSpan, evaluate_decision
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.branching import small_request
from tests.unit.solver.training.enumerated import enumerated
from tests.unit.solver.training.planned import planned

EXAMPLE = Path(__file__).parents[4] / "examples" / "encoder-decoder" / "t5-11b-64xv100.yaml"


def eager(seed: int) -> TrainingRequest:
    """A small request under eager-1F1B, with more room and a network slow enough for sends to matter."""
    request = small_request(seed)
    groups = []
    for group in request.cluster.groups:
        node = replace(group.node, device=replace(group.node.device, memory_bytes=2 * group.node.device.memory_bytes))
        node = replace(node, inter=replace(node.inter, bytes_per_s=1e7), intra=replace(node.intra, bytes_per_s=1e8))
        groups.append(replace(group, node=node))
    only = (Schedule.EAGER_ONE_F_ONE_B,)
    search = replace(request.search, space=Space.FREE, schedules=only, recompute=(Recompute.NONE,), pp=(2, 4))
    return replace(request, cluster=Cluster(tuple(groups)), search=search)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("request_of", [small_request, eager])
@pytest.mark.parametrize("seed", range(8))
def test_equals_every_split_of_every_candidate(seed: int, request_of: Callable[[int], TrainingRequest]) -> None:
    request = request_of(seed)
    best_s = enumerated(request).least_s
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible == (best_s is not None)
    assert not check(plan, request), check(plan, request)
    if best_s is not None:
        assert plan.predicted is not None
        assert plan.predicted.step_time_s == pytest.approx(best_s, rel=1e-9)
        assert plan.certificate.status is Status.OPTIMAL
        assert predict_training(request, plan).predicted == plan.predicted
    else:
        assert plan.reason is not None and plan.reason.need > plan.reason.have


@pytest.mark.parametrize("pp", [1, 2])
def test_states_of_a_tied_table_on_the_host_are_those_of_its_storage(pp: int) -> None:
    """Without a pipeline one storage serves both embeddings, which the checker once took for two."""
    request = small_request(0)
    (group,) = request.cluster.groups
    node = replace(group.node, device=replace(group.node.device, memory_bytes=2**34))
    search = replace(request.search, pp=(pp,), zero_stages=(1,), offload_optimizer=(1.0,))
    asked = replace(request, cluster=Cluster((replace(group, node=node),)), search=search)
    plan = planned(asked)
    first, *others = flat(plan).stages
    assert first.offload.optimizer == 1.0 and first.memory.optimizer_bytes == 0.0
    doubled = replace(first, memory=replace(first.memory, host_bytes=2 * first.memory.host_bytes))
    assert Rule.HOST_BYTES in {violation.rule for violation in check(with_fields(plan, stages=(doubled, *others)), asked)}


@pytest.fixture(scope="module")
def t5() -> tuple[TrainingRequest, Plan]:
    request = read_request(str(EXAMPLE))
    return request, plan_training(request, stop=never_stop, progress=ignore_progress)


@pytest.mark.slow
def test_t5_11b_is_cut_into_stages_of_both_stacks(t5: tuple[TrainingRequest, Plan]) -> None:
    request, plan = t5
    assert plan.certificate.status is Status.OPTIMAL
    assert flat(plan).axes is not None and flat(plan).axes.pp == 8
    assert not check(plan, request)
    blocks = [{span.block for span in stage.blocks} for stage in flat(plan).stages]
    assert "embedding" in blocks[0] and "head" in blocks[-1]
    assert any("decoder_full" in names for names in blocks[:-1])


def multimodal_request() -> TrainingRequest:
    """Text layers that read what a tower of image layers wrote, on four devices in a pipeline."""
    request = small_request(1)
    text = catalog.model("llama-3.1-8b")
    image = replace(text.block("layer"), name="image_layer")
    embed = replace(text.block("embedding"), name="image_embedding")
    out = Tensor("seen", ("batch", "seq", "hidden"))
    x = Tensor("x", out.dims)
    project = Operator("project", OperatorKind.ELEMENTWISE, (x,), (out,), flops_per_element=1.0)
    merged = Tensor("merged", out.dims)
    merge = Operator("merge", OperatorKind.ELEMENTWISE, (x, out), (merged,), flops_per_element=1.0)
    blocks = (*text.blocks, image, embed, Block("tower_end", (project,), "seen"), Block("merge", (merge,), "merged"))
    chain = [
        ("image_embedding", 1),
        ("image_layer", 4),
        ("tower_end", 1),
        ("embedding", 1),
        ("merge", 1),
        ("layer", 4),
        ("head", 1),
    ]
    model = ModelGraph(
        "image-and-text",
        {**text.dims, "hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "ffn": 1024, "vocab": 4096},
        blocks,
        tuple(BlockRun(name, repeat) for name, repeat in chain),
        edges=((0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6)),
    )
    cluster = read_request(str(EXAMPLE)).cluster
    nodes = (replace(cluster.groups[0], nodes=1),)
    search = Search(launcher=Launcher.DEEPSPEED, pp=(4,), tp=(1,))
    workload = TrainingWorkload("training", global_batch=32, seq_len=256, precision=DType.FP16)
    return replace(request, workload=workload, model=model, cluster=replace(cluster, groups=nodes), search=search)


def test_a_tower_of_images_and_a_stack_of_text_share_a_pipeline() -> None:
    request = multimodal_request()
    dag = layer_dag(request.model)
    assert dag.entries == (None, 0, 1, 2, 3, 4, None, 6, 7, 8, 9, 10, 11)
    assert dag.sides[7] == (5,) and sum(map(len, dag.sides)) == 1
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.certificate.status is Status.OPTIMAL and len(flat(plan).stages) == 4
    assert not check(plan, request), check(plan, request)
    assert predict_training(request, plan).predicted == plan.predicted


def moved(plan: Plan, stage: int, blocks: tuple[LayerSpan, ...]) -> Plan:
    stages = list(flat(plan).stages)
    stages[stage] = replace(stages[stage], blocks=blocks)
    return with_fields(plan, stages=tuple(stages))


def test_the_checker_refuses_layers_before_what_they_read(t5: tuple[TrainingRequest, Plan]) -> None:
    request, plan = t5
    first, last = flat(plan).stages[0].blocks, flat(plan).stages[-1].blocks
    swapped = moved(moved(plan, 0, last), len(flat(plan).stages) - 1, first)
    assert any("reads layer" in violation.message for violation in check(swapped, request))
    with pytest.raises(PlanFileError, match="come after"):
        predict_training(request, swapped)


def test_the_checker_refuses_layers_left_out_or_twice(t5: tuple[TrainingRequest, Plan]) -> None:
    request, plan = t5
    for blocks in (flat(plan).stages[1].blocks[:-1], flat(plan).stages[2].blocks):
        assert check(moved(plan, 1, blocks), request)


def test_the_checker_counts_what_the_encoder_wrote_on_every_stage_that_reads_it(t5: tuple[TrainingRequest, Plan]) -> None:
    request, plan = t5
    assert flat(plan).microbatch is not None
    encoded = flat(plan).microbatch.size * request.workload.seq_len * request.model.dims["hidden"] * 2
    decoder = next(i for i, s in enumerate(flat(plan).stages) if {span.block for span in s.blocks} == {"decoder_full"})
    memory = flat(plan).stages[decoder].memory
    without = replace(memory, activations_bytes=memory.activations_bytes - flat(plan).stages[decoder].in_flight * encoded)
    stages = list(flat(plan).stages)
    stages[decoder] = replace(stages[decoder], memory=without)
    assert any(v.rule == "activations" for v in check(with_fields(plan, stages=tuple(stages)), request))


def test_sending_more_tensors_is_never_faster(t5: tuple[TrainingRequest, Plan]) -> None:
    """The same layers and figures, were nothing read besides the stream, take less time and memory."""
    request, _ = t5
    costs = TrainingCosts(request)
    candidate = next(c for c in every_candidate_of_pipeline(request, costs))
    kinds = costs.stage_kinds(candidate)
    sharding = next(iter(costs.shardings(candidate, kinds)))
    tables = costs.stage_tables(candidate, sharding, kinds)
    ends = (26, 39, 52)
    spans = tuple(
        StageSpan(a, b - 1, candidate.recompute[0], tuple(range(a, b))) for a, b in zip((0, *ends[:-1]), ends, strict=True)
    )
    spans = (*spans[:-1], spans[-1])
    decision = Decision(candidate, sharding, spans)
    branching = evaluate_decision(decision, tables[: len(spans)])
    plain = evaluate_decision(decision, tuple(replace(table, dag=None) for table in tables[: len(spans)]))
    # After the encoder its output goes on; inside the decoder the stream goes on beside it.
    sends = [stage.sends_s / other.sends_s for stage, other in zip(branching.stages, plain.stages, strict=True)]
    assert sends == [1.0, 2.0, 1.0]
    held = [b.activation_bytes - p.activation_bytes for b, p in zip(branching.stages, plain.stages, strict=True)]
    assert held[0] == 0.0 and held[1] > 0.0 and held[2] > 0.0


def every_candidate_of_pipeline(request: TrainingRequest, costs: TrainingCosts) -> Iterator[Candidate]:
    from meshwright.solver.training.space.candidates import families

    narrow = replace(request, search=replace(request.search, pp=(4,), tp=(2,)))
    for family in families(narrow):
        yield from family.candidates()
