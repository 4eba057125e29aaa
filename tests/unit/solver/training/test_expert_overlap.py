"""Exchanges of tokens under the passes of another micro-batch: their cost, who has it, and bounds of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.network.overlap import Stream, pair_exposed_s
from meshwright.costmodels.network.token_dispatch import DispatchFormat
from meshwright.costmodels.pipeline import Schedule, paired_share
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.sharding_problem import Criterion, IntraOpProblem, frontier, n_objectives
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.search.best_first import expand
from meshwright.solver.training.search.bounds import Member, family_bound_s, member_bound_s
from meshwright.solver.training.space.candidates import Candidate, families
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.instances import varied_request
from tests.unit.solver.verify.changes import changed

PAIRING = (Schedule.DUALPIPE, Schedule.DUALPIPE_V)


def moe(search: Search | None = None, dispatch_format: DispatchFormat = DispatchFormat.WORKING) -> TrainingRequest:
    """Six layers with experts on four nodes of H100 with four times the memory."""
    graph = model("qwen3-235b-a22b")
    runs = tuple(replace(run, repeat=min(run.repeat, 6)) for run in graph.chain)
    node = node_type("dgx-h100")
    node = replace(node, device=replace(node.device, memory_bytes=4 * node.device.memory_bytes))
    cluster = Cluster((NodeGroup("a", node, 4),))
    workload = TrainingWorkload("training", global_batch=512, seq_len=4096, dispatch_format=dispatch_format)
    asked = Search(space=Space.FREE, tp=(1,), cp=(1,), pp=(2,), microbatch=(4,), zero_stages=(1,), recompute=(Recompute.NONE,))
    return TrainingRequest(replace(graph, chain=runs), cluster, workload, search=search or asked)


def candidate(**changes: object) -> Candidate:
    given = Candidate(
        Mesh(dp=16, tp=1, pp=2, cp=1, ep=16), 4, 8, 1, REPLICATED, (Recompute.NONE,), Pipelining(Schedule.DUALPIPE)
    )
    return replace(given, **changes)  # type: ignore[arg-type]


def layer(of: Candidate, request: TrainingRequest) -> np.ndarray:
    """Costs of a layer with experts."""
    costs = TrainingCosts(request)
    kinds = costs.stage_kinds(of)
    setting = costs.settings(of, kinds[0])[0]
    found = costs.sharded_costs(setting, next(costs.shardings(of, kinds)))
    return np.asarray(found[int(found[:, Criterion.EP_COMM_S].argmax())])


def test_pairs_hide_what_their_passes_outlast() -> None:
    alone, paired = layer(candidate(pipelining=Pipelining(Schedule.ZB_H1)), moe()), layer(candidate(), moe())
    exchange_s, beside_s = alone[Criterion.EP_COMM_S] / 2, alone[Criterion.BESIDE_S]
    assert beside_s == pytest.approx(alone[Criterion.TIME_S] - 2 * exchange_s)
    shown_s = sum(pair_exposed_s(exchange_s, beside_s / 3, beside_s * 2 / 3, Stream.INTER_NODE))
    share = paired_share(Schedule.DUALPIPE, 2, 8)
    assert 0.5 < share < 1.0
    expected = share * (beside_s + shown_s) + (1 - share) * alone[Criterion.TIME_S]
    assert paired[Criterion.TIME_S] == pytest.approx(expected)
    assert alone[Criterion.TIME_S] - paired[Criterion.TIME_S] == pytest.approx(
        alone[Criterion.EP_COMM_S] - paired[Criterion.EP_COMM_S]
    )


def test_nothing_is_hidden_beside_layers_that_run_again_whole() -> None:
    of = candidate(recompute=(Recompute.FULL,))
    assert layer(of, moe())[Criterion.TIME_S] == layer(replace(of, pipelining=Pipelining(Schedule.ZB_H1)), moe())[0]


def test_fp8_shortens_one_way_of_two() -> None:
    alone = candidate(pipelining=Pipelining(Schedule.ZB_H1))
    working, fp8 = (layer(alone, moe(dispatch_format=way))[Criterion.EP_COMM_S] for way in DispatchFormat)
    # 1 + 1 / 32 bytes there and 2 back, of 4 bytes; latencies stay.
    assert 3.03 / 4 < fp8 / working < 0.80


@pytest.fixture(scope="module")
def paired_plan() -> Plan:
    request = moe()
    asked = replace(request, search=replace(request.search, schedules=(Schedule.DUALPIPE,), ep=(16,)))
    return plan_training(asked, stop=never_stop, progress=ignore_progress)


def test_a_plan_in_pairs_is_predicted_and_checked(paired_plan: Plan) -> None:
    request = moe()
    axes = flat(paired_plan).axes
    assert axes is not None
    assert axes.ep == 16
    assert predict_training(request, paired_plan).predicted == paired_plan.predicted
    assert check(paired_plan, request) == ()


def test_the_checker_refuses_more_than_can_be_hidden(paired_plan: Plan) -> None:
    breakdown = flat(paired_plan).breakdown
    assert breakdown is not None
    moved = changed(paired_plan, "breakdown.ep_comm_s", 0.0)
    moved = changed(moved, "breakdown.compute_s", breakdown.compute_s + breakdown.ep_comm_s)
    assert {violation.rule for violation in check(moved, moe())} == {Rule.BREAKDOWN}


def members(request: TrainingRequest) -> Iterator[tuple[float, Member]]:
    """Members of families with experts on several ranks under schedules that pair passes, with their families' bounds."""
    costs = TrainingCosts(request)
    for family in families(request):
        if family.mesh.ep == 8 and family.pipelinings[0].schedule in PAIRING:
            bound = family_bound_s(family, costs)
            assert bound is not None
            some = itertools.islice(expand(family, costs), 100)
            yield from ((bound, node) for node in some if isinstance(node, Member))


def test_bounds_of_families_hold() -> None:
    request = moe()
    found = list(members(replace(request, search=replace(request.search, schedules=PAIRING, ep=(8,)))))
    assert {member.candidate.pipelining.schedule for _, member in found} == {*PAIRING}
    assert all(bound <= member_bound_s(member) * (1 + 1e-9) for bound, member in found)


def test_a_choice_that_pairs_better_is_kept_though_it_is_slower_alone() -> None:
    slower, faster = np.zeros(len(Criterion)), np.zeros(len(Criterion))
    slower[[Criterion.TIME_S, Criterion.EP_COMM_S, Criterion.BESIDE_S]] = 20.0, 10.0, 10.0
    faster[[Criterion.TIME_S, Criterion.EP_COMM_S, Criterion.BESIDE_S]] = 17.0, 5.0, 12.0
    for paired, kept in ((False, {(1,)}), (True, {(0,), (1,)})):
        problem = IntraOpProblem((np.array([slower, faster]),), (), n_objectives((), paired=paired))
        assert {point.choice for point in frontier(problem)} == kept


SCHEDULES = {1: Schedule.ONE_F_ONE_B, 2: Schedule.INTERLEAVED}


def asked(pp: int, *ways: ExpertOverlap, **search: object) -> TrainingRequest:
    """The mixture on so many stages; experts on all ranks of a stage."""
    request = moe()
    beside = replace(request.search, pp=(pp,), ep=(32 // pp,), schedules=(SCHEDULES[pp],), virtual_stages=(2,))
    return replace(request, search=replace(beside, expert_overlap=ways, **search))  # type: ignore[arg-type]


def planned(request: TrainingRequest) -> Plan:
    return plan_training(request, stop=never_stop, progress=ignore_progress)


@pytest.mark.parametrize("pp", SCHEDULES)
def test_a_request_opens_it_for_other_schedules(pp: int) -> None:
    both, alone = (planned(asked(pp, *ways)) for ways in (tuple(ExpertOverlap), ()))
    assert (flat(both).expert_overlap, flat(alone).expert_overlap) == (ExpertOverlap.BATCH, None)
    assert both.predicted is not None and alone.predicted is not None
    assert both.predicted.step_time_s is not None and alone.predicted.step_time_s is not None
    assert both.predicted.step_time_s < alone.predicted.step_time_s
    # A forward is in memory before the backward beside it frees its own.
    held = flat(alone).stages[0].in_flight + 1 / pp
    assert flat(both).stages[0].in_flight == pytest.approx(held)
    assert check(both, asked(pp, *ExpertOverlap)) == ()
    assert predict_training(asked(pp, *ExpertOverlap), both).predicted == both.predicted
    assert {violation.rule for violation in check(both, asked(pp))} == {Rule.SEARCH}
    assert {violation.rule for violation in check(alone, asked(pp, ExpertOverlap.BATCH))} == {Rule.SEARCH}


def test_whole_layers_that_run_again_hide_nothing() -> None:
    plan = planned(asked(1, ExpertOverlap.BATCH))
    again = tuple(replace(stage, recompute=Recompute.FULL) for stage in flat(plan).stages)
    request = asked(1, ExpertOverlap.BATCH, recompute=())
    with pytest.raises(PlanFileError, match="expert_overlap"):
        predict_training(request, with_fields(plan, stages=again))
    assert Rule.STAGES in {violation.rule for violation in check(with_fields(plan, stages=again), request)}


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.NEMO])
def test_megatron_lm_has_it(launcher: Launcher) -> None:
    request = asked(1, *ExpertOverlap, space=Space.LAUNCHABLE, launcher=launcher)
    ways = {family.expert_overlap for family in families(request)}
    assert ways == ({None, ExpertOverlap.BATCH} if launcher is Launcher.MEGATRON_LM else {None})
    free = planned(asked(1, ExpertOverlap.BATCH))
    refused = {violation.rule for violation in check(free, request)}
    assert (Rule.LAUNCHER in refused) == (launcher is not Launcher.MEGATRON_LM)


@pytest.mark.parametrize("seed", [73, 93, 138])
def test_the_best_of_every_plan_is_found(seed: int) -> None:
    request = varied_request(seed)
    request = replace(request, search=replace(request.search, expert_overlap=(ExpertOverlap.BATCH,), ep=(2, 3, 4, 6)))
    plan = planned(request)
    assert is_the_best(plan, enumerated(request))
    assert flat(plan).expert_overlap is ExpertOverlap.BATCH
    assert check(plan, request) == ()
