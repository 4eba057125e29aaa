"""Random small requests with all memory choices open: plans equal enumeration, pass the checker, and are predicted alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError, PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Gradients, Launcher, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.ablations import memory_ablations
from tests.unit.solver.training.enumerated import enumerated
from tests.unit.solver.training.instances import memory_request

FIRST, N_REQUESTS, CHUNK = 12, 18, 9
SEEDS_WITHIN_GROUPS = (45, 72, 75, 113, 116, 120, 138)


def planned(request: TrainingRequest) -> Plan:
    return plan_training(request, stop=never_stop, progress=ignore_progress)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(N_REQUESTS // CHUNK))
def test_equals_enumeration(chunk: int) -> None:
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        request = memory_request(seed)
        best_s = enumerated(request).least_s
        plan = planned(request)
        assert plan.feasible == (best_s is not None), seed
        assert not check(plan, request), (seed, check(plan, request))
        if best_s is not None:
            assert plan.predicted is not None
            assert plan.predicted.step_time_s == pytest.approx(best_s, rel=1e-9), seed
            assert predict_training(request, plan).predicted == plan.predicted


@pytest.mark.slow
def test_the_smaller_state_is_chosen_where_it_is_worth_it_and_muon_is_not_free() -> None:
    """Llama-3.1-8B on one node of 40 GB: AdamW's states crowd out activations, moments in bf16 do not."""
    own = planned(llama("adamw"))
    chosen = planned(llama("adamw", "adamw_bf16"))
    assert flat(own).optimizer is None and flat(chosen).optimizer is Optimizer.ADAMW_BF16
    assert own.predicted is not None and chosen.predicted is not None
    assert chosen.predicted.tokens_per_s > own.predicted.tokens_per_s
    assert "adamw_bf16" in chosen.certificate.space
    sgd, muon = planned(llama("sgd_momentum", zero=0)), planned(llama("muon", zero=0))
    assert flat(sgd).breakdown is not None and flat(muon).breakdown is not None
    assert flat(muon).breakdown.optimizer_s > 2 * flat(sgd).breakdown.optimizer_s
    table = 128256 * 4096 / 4
    for with_muon, with_sgd in zip(flat(muon).stages, flat(sgd).stages, strict=True):
        grown = with_muon.memory.optimizer_bytes - with_sgd.memory.optimizer_bytes
        assert grown == pytest.approx(4 * table, rel=1e-3), "embedding and head are AdamW's: two moments"


def test_a_launcher_is_asked_for_optimizers_that_it_has_settings_for() -> None:
    with pytest.raises(WorkloadError, match="none of these optimizers"):
        planned(llama("muon", launcher=Launcher.TORCHTITAN))
    fallen_back = planned(llama("adamw", "muon", launcher=Launcher.TORCHTITAN))
    assert flat(fallen_back).optimizer is None
    request = llama("adamw", "adamw_8bit", zero=1)
    plan = planned(request)
    assert flat(plan).optimizer is Optimizer.ADAMW_8BIT
    unsharded = with_fields(plan, stages=tuple(replace(stage, zero_stage=0) for stage in flat(plan).stages))
    assert "adamw_8bit beside ZeRO 0" in str(check(unsharded, llama("adamw", "adamw_8bit")))
    unasked = check(plan, llama("adamw", zero=1))
    assert {violation.rule for violation in unasked} == {Rule.SEARCH}
    assert Rule.OPTIMIZER in {violation.rule for violation in check(with_fields(plan, optimizer=None), request)}


def test_gradients_released_layer_by_layer_leave_room_and_take_no_time() -> None:
    """Llama-3.1-8B, one micro-batch on one device and on eight: a layer's gradients live, of several ranks those of two."""
    for n in (1, 8):
        request = llama_released(n, Gradients.KEPT)
        kept, released = planned(request), planned(llama_released(n, Gradients.RELEASED))
        assert flat(released).stages[0].gradients is Gradients.RELEASED
        ours, theirs = flat(released).stages[0].memory, flat(kept).stages[0].memory
        assert ours.gradients_bytes == 0
        head = 128256 * 4096 * 4 * (2 if n > 1 else 1)
        assert ours.transient_bytes - theirs.transient_bytes == pytest.approx(head, rel=0.01)
        assert released.predicted is not None and kept.predicted is not None
        assert released.predicted.step_time_s == pytest.approx(kept.predicted.step_time_s)
        both = planned(replace(request, search=replace(request.search, gradients=tuple(Gradients))))
        assert flat(both).stages[0].gradients is Gradients.KEPT, "of equals the plain one"
        assert predict_training(request, released).predicted == released.predicted


def test_released_gradients_are_for_steps_of_one_micro_batch() -> None:
    request = llama_released(8, Gradients.RELEASED)
    plan = planned(request)
    assert flat(plan).microbatch is not None
    summed = with_fields(plan, microbatch=replace(flat(plan).microbatch, size=1, count=2))
    with pytest.raises(PlanFileError, match="one micro-batch"):
        predict_training(replace(request, workload=replace(request.workload, global_batch=16)), summed)
    wrong = with_fields(plan, stages=tuple(replace(s, offload=Offload(optimizer=0.5)) for s in flat(plan).stages))
    allowed = replace(request, search=replace(request.search, offload_optimizer=(0.5,)))
    assert Rule.GRADIENTS in {violation.rule for violation in check(wrong, allowed)}
    with pytest.raises(WorkloadError, match="can't release gradients"):
        planned(replace(request, search=replace(request.search, space=Space.LAUNCHABLE)))
    with pytest.raises(ExportError, match="it updates after it"):
        export(plan, request, "torchtitan")


def llama_released(n: int, gradients: Gradients) -> TrainingRequest:
    device = replace(node_type("dgx-b200").device, memory_bytes=300 * 2**30)
    cluster = Cluster((NodeGroup("a", replace(node_type("dgx-b200"), device=device, devices_per_node=n), 1),))
    search = Search(
        space=Space.FREE, tp=(1,), cp=(1,), pp=(1,), zero_stages=(0,), recompute=(Recompute.NONE,), gradients=(gradients,)
    )
    return TrainingRequest(model("llama-3.1-8b"), cluster, TrainingWorkload("training", n, 4096), search=search)


def llama(*optimizers: str, zero: int | None = None, launcher: Launcher = Launcher.MEGATRON_LM) -> TrainingRequest:
    cluster = Cluster((NodeGroup("a", node_type("dgx-a100-40gb"), 1),))
    search = Search(
        launcher=launcher,
        optimizers=tuple(Optimizer(name) for name in optimizers),
        zero_stages=() if zero is None else (zero,),
        tp=(4,),
        cp=(1,),
        pp=(2,) if zero == 0 else (1,),
    )
    return TrainingRequest(model("llama-3.1-8b"), cluster, TrainingWorkload("training", 64, 4096), search=search)


@pytest.mark.parametrize("seed", range(0, N_REQUESTS, 3))
def test_no_choice_switched_off_gives_a_better_plan(seed: int) -> None:
    request = memory_request(seed)
    best = planned(request)
    for name, less in memory_ablations(request):
        plan = planned(replace(request, search=less))
        assert plan.feasible <= best.feasible, (seed, name)
        if plan.feasible:
            assert plan.certificate.objective is not None and best.certificate.objective is not None
            assert plan.certificate.objective >= best.certificate.objective * (1 - 1e-9), (seed, name)


def within_groups(seed: int) -> TrainingRequest:
    """A request for ZeRO 1 and 2 within pairs of ranks."""
    drawn = memory_request(seed)
    pairs = replace(drawn.search, zero_stages=(1, 2), shard_ranks=(2,), tp=(1,), cp=(1,), ep=(1,), etp=(), pp=(1,))
    return replace(drawn, search=pairs)


def test_zero_within_groups_equals_enumeration() -> None:
    found = set()
    for seed in SEEDS_WITHIN_GROUPS:
        request = within_groups(seed)
        plan = planned(request)
        assert not check(plan, request), seed
        best_s = enumerated(request).least_s
        assert best_s is not None and plan.predicted is not None
        assert plan.predicted.step_time_s == pytest.approx(best_s, rel=1e-9), seed
        assert predict_training(request, plan).predicted == plan.predicted
        stage = flat(plan).stages[0]
        found |= {(stage.zero_stage, request.search.space)} if stage.shard_ranks == 2 else set()
        others = replace(request, search=replace(request.search, shard_ranks=(3,)))
        assert Rule.SEARCH in {violation.rule for violation in check(plan, others)}
    assert found >= {(1, Space.FREE), (2, Space.FREE), (1, Space.LAUNCHABLE), (2, Space.LAUNCHABLE)}, found
