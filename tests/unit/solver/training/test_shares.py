"""Replicas by node group: shares of the batch and each group's layout are as good as enumeration, and checked by themselves."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Stop, ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, Gradients, Objective, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.switching import switch_bytes
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.part_borders import cost_even_cuts
from meshwright.solver.training.explain import explain
from meshwright.solver.training.forms.by_group.search import part_sequences
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.search.partition import MemoryShortfall, ParameterLimit, StageLimits, partition_stages
from meshwright.solver.training.space.candidates import families
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned
from tests.unit.solver.training.shares import unequal_requests


@pytest.mark.slow
def test_shares_are_as_good_as_the_best_of_every_split() -> None:
    chosen = 0
    for request in unequal_requests(8):
        plan = planned(request)
        assert is_the_best(plan, enumerated(request))
        if flat(plan).shares is None:
            continue
        chosen += 1
        again = predict_training(request, plan)
        assert again.predicted == plan.predicted
        assert flat(again).shares == flat(plan).shares
    assert chosen >= 2


def test_even_parts_keep_a_limit_on_parameters() -> None:
    n_limited = 0
    for seed in range(40):
        request = random_request(seed)
        costs = TrainingCosts(request)
        parameters = np.array([request.model.block_parameters(name) for name in request.model.layers], np.float64)
        candidates = (candidate for family in families(request) for candidate in family.candidates())
        for candidate in itertools.islice((c for c in candidates if not c.pipelining.any_borders), 5):
            kinds = costs.stage_kinds(candidate)
            tables = costs.stage_tables(candidate, next(costs.shardings(candidate, kinds)), kinds)
            roomy = tuple(replace(table, capacity_bytes=math.inf) for table in tables)
            costed = cost_even_cuts(candidate, roomy)
            held = costed.sums_of_ranks(parameters).max(axis=1) / candidate.mesh.stage_devices
            most = float(held.min())
            spans = partition_stages(candidate, roomy, StageLimits(ParameterLimit(parameters, most)))
            assert not isinstance(spans, MemoryShortfall)
            cut = [*(span.first for span in spans), len(parameters)]
            chosen = costed.cuts.tolist().index(cut)
            assert held[chosen] <= most
            assert costed.step_s[chosen] == costed.step_s[held <= most].min()
            n_limited += bool(held[costed.step_s.argmin()] > most)
    assert n_limited >= 1


@cache
def shared() -> tuple[Plan, TrainingRequest]:
    """A plan whose groups have replicas of their own."""
    for request in unequal_requests(8):
        plan = planned(request)
        if flat(plan).shares is not None:
            return plan, request
    pytest.fail("no request is planned better with shares")


def rules(plan: Plan, request: TrainingRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}


def test_broken_shares_are_found() -> None:
    plan, request = shared()
    shares = flat(plan).shares
    assert shares is not None
    (pool,) = shares.pools
    for broken, rule in (
        (replace(shares, sequences=shares.sequences + 1), Rule.BATCH),
        (replace(shares, pools=(replace(pool, sequences=0),)), Rule.BATCH),
        (replace(shares, pools=()), Rule.DEVICES),
        (replace(shares, pools=(replace(pool, group="other"),)), Rule.DEVICES),
        (replace(shares, exchange_s=shares.exchange_s / 2), Rule.STEP_TIME),
        (replace(shares, step_time_s=shares.step_time_s * 0.9), Rule.STEP_TIME),
        (replace(shares, pools=(replace(pool, step_time_s=pool.step_time_s * 0.9),)), Rule.STEP_TIME),
        (replace(shares, pools=(replace(pool, stages=flat(plan).stages),)), Rule.DEVICES),
        (replace(shares, pools=(replace(pool, microbatch=replace(pool.microbatch, count=1000)),)), Rule.BATCH),
    ):
        assert rule in rules(with_fields(plan, shares=broken), request), broken
    released = tuple(replace(stage, gradients=Gradients.RELEASED) for stage in pool.stages)
    assert Rule.SEARCH in rules(with_fields(plan, shares=replace(shares, pools=(replace(pool, stages=released),))), request)
    heavier = replace(pool.stages[0], memory=replace(pool.stages[0].memory, weights_bytes=1e15))
    stages = (heavier, *pool.stages[1:])
    assert Rule.WEIGHTS in rules(with_fields(plan, shares=replace(shares, pools=(replace(pool, stages=stages),))), request)
    assert plan.predicted is not None
    assert Rule.MFU in rules(replace(plan, predicted=replace(plan.predicted, mfu=0.5)), request)


def test_shares_that_were_not_asked_for_are_refused() -> None:
    plan, request = shared()
    assert flat(plan).shares is not None
    even = replace(request, search=replace(request.search, batch_shares=BatchShares.EVEN))
    assert Rule.SEARCH in rules(plan, even)
    wrong = with_fields(plan, shares=replace(flat(plan).shares, sequences=flat(plan).shares.sequences + 1))
    with pytest.raises(PlanFileError, match="make up the global batch"):
        predict_training(request, wrong)
    with pytest.raises(PlanFileError, match="node groups behind the first"):
        predict_training(request, with_fields(plan, shares=replace(flat(plan).shares, pools=())))
    answered = AnsweredRequest(plan, request)
    with pytest.raises(PlanFileError, match="by node group"):
        switch_bytes(answered, answered)
    with pytest.raises(PlanFileError, match="for each group"):
        explain(request, plan, request.model.blocks[0].operators[0].name)


def test_replicas_by_group_that_can_not_be_are_refused() -> None:
    (request,) = unequal_requests(1)
    launchable = replace(request, search=replace(request.search, space=Space.LAUNCHABLE))
    with pytest.raises(WorkloadError, match="no launcher"):
        planned(launchable)
    with pytest.raises(WorkloadError, match="whole cluster"):
        planned(replace(request, objective=Objective.DEVICES))
    with pytest.raises(WorkloadError, match="one optimizer"):
        planned(replace(request, search=replace(request.search, gradients=(Gradients.RELEASED,))))
    first = request.cluster.groups[0]
    groups = tuple(replace(first, name=f"g{i}") for i in range(4))
    with pytest.raises(WorkloadError, match="too many node groups"):
        planned(replace(request, cluster=replace(request.cluster, groups=groups)))


@dataclass
class Questions:
    """Ends a search when it has been asked so often, parts of it by their share; the first part comes to its end."""

    left: int
    whole: Questions | None = None
    is_first: bool = True

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0 or (self.whole is not None and self.whole())

    def part(self, share: float) -> Stop:
        if self.is_first and self.whole is None:
            self.is_first = False
            return never_stop
        return Questions(math.ceil(max(0, self.left) * share), self)


def test_shares_are_found_while_their_search_has_not_ended() -> None:
    request = list(unequal_requests(8))[1]
    whole = planned(request)
    stopped = plan_training(request, stop=Questions(60), progress=ignore_progress)
    assert check(stopped, request) == ()
    assert flat(stopped).shares is not None
    assert stopped.certificate.status is Status.FEASIBLE
    assert stopped.certificate.gap is not None and 0.0 < stopped.certificate.gap < 1.0
    assert whole.certificate.objective is not None and stopped.certificate.bound is not None
    assert stopped.certificate.bound <= whole.certificate.objective * (1 + 1e-12)


def test_the_batch_is_dealt_out_in_at_most_64_equal_parts() -> None:
    assert [part_sequences(batch) for batch in (1, 7, 64, 65, 512, 1536, 67)] == [1, 1, 1, 5, 8, 24, 67]
