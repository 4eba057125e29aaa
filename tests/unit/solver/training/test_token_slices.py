"""Pipelines of token slices: their search, their lengths, what they hold, and what they refuse."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from meshwright.app.launching.parts.launchable import require_launchable
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError, PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import TOKEN_SLICED, Durations, PassKind, Schedule, simulate
from meshwright.costmodels.pipeline.placement import build
from meshwright.costmodels.pipeline.program import Slot
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.uniform.prediction import decision_of
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.sliced_sequences import balanced_tiles
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import Rule
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated
from tests.unit.solver.training.instances import sliced_request


def planned(request: TrainingRequest) -> Plan:
    return plan_training(request, stop=never_stop, progress=ignore_progress)


def long_request(schedule: Schedule, mode: Recompute = Recompute.NONE, *, batch: int = 4, slices: int = 8) -> TrainingRequest:
    """Llama-3.1-70B on 32 H100, few sequences of 8,192 tokens, tp 8 and pp 4; by its median, with risk 0.5, it fits."""
    search = Search(
        space=Space.FREE, risk=0.5,
        dp=(1,), tp=(8,), pp=(4,), cp=(1,), microbatch=(1,), zero_stages=(1,), recompute=(mode,),
        schedules=(schedule,), token_slices=(slices,), tp_overlap=(TpOverlap.EXPOSED,),
    )  # fmt: skip
    cluster = Cluster((NodeGroup("pool", node_type("dgx-h100"), 4),))
    return TrainingRequest(
        model("llama-3.1-70b"), cluster, TrainingWorkload("training", global_batch=batch, seq_len=8192), search=search
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 9, 13, 17, 19, 20])
def test_equals_enumeration(seed: int) -> None:
    """benchmarks/enumerable.py runs many more."""
    request = sliced_request(seed)
    plan, best_s = planned(request), enumerated(request).least_s
    assert plan.certificate.objective == (None if best_s is None else pytest.approx(best_s, rel=1e-9))
    assert not check(plan, request)
    if plan.feasible:
        assert predict_training(request, plan).predicted == plan.predicted


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("schedule", sorted(TOKEN_SLICED))
def test_the_formula_is_near_the_event_program(schedule: Schedule, mode: Recompute) -> None:
    """Every stage's own passes, slice by slice, sends in them: embedding and head bend the shares of all layers."""
    request = long_request(schedule, mode)
    plan = planned(request)
    costs = TrainingCosts(request)
    decision = decision_of(request, costs, pipelines_of(plan), optimizer=None)
    candidate = decision.candidate
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    table = costs.stage_tables(candidate, decision.sharding, costs.stage_kinds(candidate))[0]
    passes = []
    for part in setting.parts:
        of_blocks = costs.sharded_costs(part, decision.sharding)
        whole = (of_blocks[:, 0] + costs.rerun_s(mode, of_blocks))[costs.layer_block]
        forward = of_blocks[:, 1][costs.layer_block]
        passes.append([(forward[span.layers].sum(), (whole - forward)[span.layers].sum()) for span in decision.spans])
    makespan_s = run(schedule, np.array(passes) + table.boundary_s / 2 / len(setting.parts), candidate.n_microbatches)
    formula_s = objective_s(
        [stage.time_s for stage in flat(plan).stages], [0.0] * 4, candidate.n_microbatches, waiting=table.waiting
    )

    assert makespan_s == pytest.approx(formula_s, rel=0.03)


class SlicePasses(Durations):
    """Durations of each slice on each stage of its own: ``times_s[slice, stage, pass]``."""

    times_s: npt.NDArray[np.float64]

    def slot_s(self, slot: Slot) -> float:
        """Time of a slot."""
        (action,) = slot
        backward = int(action.kind is not PassKind.FORWARD)
        return float(self.times_s[action.microbatch % len(self.times_s), action.position, backward])


def run(schedule: Schedule, times_s: npt.NDArray[np.float64], m: int) -> float:
    """Makespan of a program whose passes take ``times_s[slice, stage, pass]``."""
    n, p, _ = times_s.shape
    zeros = (0.0,) * p
    durations = SlicePasses(zeros, zeros, zeros, zeros[1:])
    object.__setattr__(durations, "times_s", times_s)
    return simulate(build(schedule, p, m, n_slices=n), durations).makespan_s


@pytest.mark.slow
def test_stages_hold_what_their_order_makes_them_hold() -> None:
    """TeraPipe holds all micro-batches, Seq1F1B as many slices as fill the ranks behind."""
    terapipe, seq1f1b = (planned(long_request(schedule)) for schedule in (Schedule.TERAPIPE, Schedule.SEQ_1F1B))
    assert [stage.in_flight for stage in flat(terapipe).stages] == [4.0] * 4
    assert [stage.in_flight for stage in flat(seq1f1b).stages] == sorted(
        (s.in_flight for s in flat(seq1f1b).stages), reverse=True
    )
    assert max(stage.in_flight for stage in flat(seq1f1b).stages) < 1.5


def test_full_recompute_keeps_keys_and_values() -> None:
    """Of 80 layers a quarter on each stage: 2 x 1 head of 128 of every token but the last slice's, in 16 bits, for four
    micro-batches, and their gradients for one."""
    plan = planned(long_request(Schedule.TERAPIPE, Recompute.FULL))
    stage = flat(plan).stages[1]
    layers = sum(span.count for span in stage.blocks)
    earlier = 8192 - flat(plan).token_slices[-1].tokens
    entry = 4 * 8192 * 8192 * 2 / (8 if flat(plan).sequence_parallel else 1)
    assert stage.memory.activations_bytes == pytest.approx(layers * (entry + (4 + 1) * 2 * 128 * earlier * 2), rel=1e-9)


def longest_s(times_s: npt.NDArray[np.float64], tiles: tuple[int, ...]) -> float:
    return float(max(times_s[ends] for ends in itertools.pairwise(itertools.accumulate(tiles, initial=0))))


def test_slices_are_cut_where_they_take_least() -> None:
    rng = np.random.default_rng(0)
    for n_tiles, count, m, pp in ((6, 3, 1, 4), (7, 2, 5, 2), (8, 4, 2, 16), (5, 5, 1, 3)):
        ends = np.arange(n_tiles + 1)
        times_s = (ends - ends[:, None]) * (1.0 + 0.1 * ends) + rng.uniform(0, 0.5, (n_tiles + 1, n_tiles + 1))
        cuts = [(0, *inner, n_tiles) for inner in itertools.combinations(range(1, n_tiles), count - 1)]
        slices_s = [[times_s[ends] for ends in itertools.pairwise(cut)] for cut in cuts]
        best = cuts[int(np.argmin([m * sum(each) + (pp - 1) * max(each) for each in slices_s]))]
        assert balanced_tiles(times_s, count, m, pp - 1) == tuple(np.diff(best))
        evenest = balanced_tiles(times_s, count, 0, 1)
        assert longest_s(times_s, evenest) == min(max(each) for each in slices_s)


@pytest.mark.slow
def test_few_long_sequences_gain_by_slices() -> None:
    asked = long_request(Schedule.ONE_F_ONE_B, batch=1, slices=1), long_request(Schedule.SEQ_1F1B, batch=1)
    # A slice is launched as a sequence is: kernels of Megatron Core would wait for the host here.
    by_hand = StatedImplementation("hand-fused")
    plain, sliced = (planned(replace(each, workload=replace(each.workload, implementation=by_hand))) for each in asked)
    assert plain.predicted is not None and sliced.predicted is not None
    assert plain.predicted.step_time_s is not None and sliced.predicted.step_time_s is not None
    assert sliced.predicted.step_time_s < 0.65 * plain.predicted.step_time_s


@pytest.mark.slow
def test_the_checker_refuses_slices_that_are_not() -> None:
    request = long_request(Schedule.SEQ_1F1B, Recompute.FULL)
    plan = planned(request)
    assert not check(plan, request)
    first, *others = flat(plan).token_slices
    stage = flat(plan).stages[0]
    lighter = replace(stage.memory, activations_bytes=stage.memory.activations_bytes * 0.98)
    broken = [
        (with_fields(plan, token_slices=(replace(first, tokens=first.tokens - 128), *others)), Rule.SEQUENCE),
        (with_fields(plan, token_slices=(replace(first, forward=first.forward / 2), *others)), Rule.STEP_TIME),
        (with_fields(plan, token_slices=()), Rule.STAGES),
        (with_fields(plan, schedule="1f1b"), Rule.STAGES),
        (with_fields(plan, stages=tuple(replace(s, zero_stage=2) for s in flat(plan).stages)), Rule.ZERO),
        (with_fields(plan, stages=(replace(stage, memory=lighter), *flat(plan).stages[1:])), Rule.ACTIVATIONS),
    ]
    for changed, rule in broken:
        assert rule in {violation.rule for violation in check(changed, request)}, rule
    asked = replace(request, search=replace(request.search, token_slices=(4,)))
    assert Rule.SEARCH in {violation.rule for violation in check(plan, asked)}
    # Time taken from one slice and given to another keeps the sum, and makes another step.
    fast, slow = replace(first, forward=1e-9), replace(others[0], forward=others[0].forward + first.forward - 1e-9)
    rules = {violation.rule for violation in check(with_fields(plan, token_slices=(fast, slow, *others[1:])), request)}
    assert {Rule.STAGE_TIME, Rule.STEP_TIME} <= rules


def test_what_can_not_pass_in_slices_is_refused() -> None:
    request = long_request(Schedule.TERAPIPE)
    searches = [
        replace(request.search, space=Space.LAUNCHABLE),
        replace(request.search, token_slices=()),
        replace(request.search, token_slices=(128,)),
        replace(request.search, stage_degrees=StageDegrees.ANY),
    ]
    asked = [replace(request, search=search) for search in searches]
    asked += [replace(request, model=model("gemma-2-9b")), replace(request, workload=replace(request.workload, seq_len=8000))]
    for each in asked:
        with pytest.raises(WorkloadError):
            planned(each)


def test_plans_with_slices_are_predicted_where_they_can_run_and_not_exported() -> None:
    request = long_request(Schedule.TERAPIPE)
    plan = planned(request)
    with pytest.raises(ExportError, match="no launcher cuts sequences into slices"):
        require_launchable(plan, request, Launcher.MEGATRON_LM)
    first, *others = flat(plan).token_slices
    uneven = with_fields(plan, token_slices=(replace(first, tokens=first.tokens - 8), *others))
    beside = with_fields(plan, stages=tuple(replace(stage, zero_stage=3) for stage in flat(plan).stages))
    for changed in (uneven, beside, with_fields(plan, token_slices=())):
        with pytest.raises(PlanFileError):
            predict_training(request, changed)
