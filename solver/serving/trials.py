"""Serving plans to run one after another: which one next, given which of them kept the targets.

A target is kept with a chance: the error of simulated times has a part that all plans share and one that each has of its own
(`costmodels/serving/latency_law`). The search names the plan that keeps it with `slo.confidence`; a plan that does more with
the same devices may keep it too. Candidates are the best plans at other confidences and of other widths of tensor parallelism.
Each is worth what its objective says, and nothing where it misses a target. The next to run, from the first on, is the one
after which the best that was found to keep its targets is expected to be worth most: summed exactly over what each plan has of
its own, and over quantiles of what all share. What runs have told of the shared part is in the law already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from meshwright.costmodels.serving.latency_law import LatencyLaw
from meshwright.solver.answer.layouts import OfWorkers, Pools
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.promise.promised import promised_of

CONFIDENCES = (0.97, 0.75, 0.5, 0.3)
"""Confidences at which the request is planned again: who asks for less has plans that do more."""

WIDTHS = (1, 2, 4, 8)
"""Degrees of tensor parallelism of which the best plan is a candidate too."""

WIDTHS_CONFIDENCE = 0.5
"""The confidence at which these are planned: that of the prediction itself."""

QUANTILES = 15
"""Parts of equal chance that a shared error is split in, each standing at its middle."""

_STANDARD = NormalDist()
_MIDDLES = tuple(_STANDARD.inv_cdf((part + 0.5) / QUANTILES) for part in range(QUANTILES))


@dataclass(frozen=True, slots=True)
class Kept:
    """A time of a plan beside its target: kept with a chance."""

    law: LatencyLaw
    median_s: float
    target_s: float

    def chance(self, shared: float) -> float:
        """Return the chance that it is kept where the shared error is so many of its spreads."""
        if not self.median_s > 0.0 or self.target_s == math.inf:
            return 1.0
        room = math.log(self.target_s / self.median_s) - shared * self.law.shared_sigma
        return _STANDARD.cdf(room / self.law.own_sigma)


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A plan that may be run: its worth where it keeps its targets, its times, and if it kept them when it ran."""

    worth: float
    ttft: Kept
    tpot: Kept
    has_kept: bool | None = None

    def chances(self) -> tuple[float, ...]:
        """Return the chances that both targets are kept, by what the errors that all plans share may be."""
        if self.has_kept is not None:
            return (float(self.has_kept),) * QUANTILES**2
        first, later = ([kept.chance(z) for z in _MIDDLES] for kept in (self.ttft, self.tpot))
        return tuple(a * b for a in first for b in later)


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """A plan, and the request that it is the answer to."""

    plan: Plan
    request: ServingRequest


@dataclass(frozen=True, slots=True)
class ServingTrial:
    """A plan to run, and the request that it is the answer to.

    chance_kept      chance that it keeps the targets
    expected_regret  of the best that was found to keep them after this trial and those before it, over the best of all
    tells            what each outcome would say of the others
    """

    plan: Plan
    request: ServingRequest
    chance_kept: float
    expected_regret: float
    tells: tuple[str, ...]


def serving_candidates(
    request: ServingRequest, plan: Plan, *, solve: Callable[[ServingRequest], Plan]
) -> tuple[ServingPlan, ...]:
    """Return the plan, and the plans of the same request at other confidences and widths, each layout once."""
    found = {_decided(plan): ServingPlan(plan, request)}
    for other in _variants(request):
        solved = solve(other)
        if solved.feasible:
            found.setdefault(_decided(solved), ServingPlan(solved, other))
    return tuple(found.values())


def _variants(request: ServingRequest) -> Iterator[ServingRequest]:
    own = request.slo.confidence
    for confidence in CONFIDENCES:
        if confidence != own:
            yield replace(request, slo=replace(request.slo, confidence=confidence))
    bold = replace(request, slo=replace(request.slo, confidence=min(own, WIDTHS_CONFIDENCE)))
    allowed = request.search.tp or WIDTHS
    if len(allowed) > 1:
        for width in allowed:
            yield replace(bold, search=replace(request.search, tp=(width,)))


def _decided(plan: Plan) -> object:
    """The decisions of a plan: workers with their degrees and batch limits."""
    layout = plan.layout
    assert isinstance(layout, OfWorkers), "a feasible serving plan"
    return tuple((w.count, w.axes, w.max_num_seqs, w.max_num_batched_tokens, w.device_ranges) for w in layout.all_workers)


def candidate_of(request: ServingRequest, plan: Plan, *, has_kept: bool | None) -> TrialPlan:
    """Return a plan as it is judged before its trial, or after."""
    figures, objective = plan.predicted, plan.certificate.objective
    assert figures is not None and objective is not None, "a feasible plan"
    promised = promised_of(request, pools=isinstance(plan.layout, Pools))
    return TrialPlan(
        1.0 / objective,
        Kept(promised.law.ttft, figures.ttft_p95_s or 0.0, promised.ttft_s),
        Kept(promised.law.tpot, figures.tpot_p95_s or 0.0, promised.tpot_s),
        has_kept,
    )


def best_next(candidates: Sequence[TrialPlan], tried: Sequence[int]) -> int:
    """Return the candidate after whose trial the best that kept its targets is expected to be worth most, of those neither
    tried nor run; of equals the likeliest, then the first."""
    chances = [each.chances() for each in candidates]
    left = [i for i, each in enumerate(candidates) if i not in tried and each.has_kept is None]
    return max(left, key=lambda i: (_expected_best(candidates, chances, [*tried, i]), fmean(chances[i]), -i))


def _expected_best(candidates: Sequence[TrialPlan], chances: Sequence[tuple[float, ...]], tried: Sequence[int]) -> float:
    """The expected worth of the best of those tried and run that keeps its targets, 0 where none does."""
    known = {i for i, each in enumerate(candidates) if each.has_kept is not None}
    ordered = sorted({*tried, *known}, key=lambda i: -candidates[i].worth)
    total = 0.0
    for world in range(QUANTILES**2):
        none_better = 1.0
        for i in ordered:
            total += candidates[i].worth * none_better * chances[i][world]
            none_better *= 1.0 - chances[i][world]
    return total / QUANTILES**2


def ordered_trials(plans: Sequence[ServingPlan], candidates: Sequence[TrialPlan], *, most: int) -> tuple[ServingTrial, ...]:
    """Return at most ``most`` trials of those that have not run, in the order in which to run them.

    The first is the one of most expected worth, which need not be the request's own: that one keeps its targets with the
    confidence asked for, and often does less than its devices can.
    """
    chances = [each.chances() for each in candidates]
    everything = range(len(candidates))
    ideal = _expected_best(candidates, chances, everything)
    tried: list[int] = []
    trials: list[ServingTrial] = []
    for _ in range(min(most, sum(each.has_kept is None for each in candidates))):
        taken = best_next(candidates, tried)
        tried.append(taken)
        found = _expected_best(candidates, chances, tried)
        regret = 1.0 - found / ideal if ideal > 0.0 else 0.0
        left = [i for i in everything if i not in tried and candidates[i].has_kept is None]
        tells = _tells(candidates, chances, taken, left)
        trials.append(ServingTrial(plans[taken].plan, plans[taken].request, fmean(chances[taken]), max(0.0, regret), tells))
    return tuple(trials)


def _tells(
    candidates: Sequence[TrialPlan], chances: Sequence[tuple[float, ...]], taken: int, left: Sequence[int]
) -> tuple[str, ...]:
    """Sentences on what the outcomes of a trial would say of the one that is worth most of those left."""
    if not left:
        return ()
    other = max(left, key=lambda i: (candidates[i].worth, fmean(chances[i]), -i))
    own, its = chances[taken], chances[other]
    before, kept = fmean(its), fmean(own)
    both = fmean(a * b for a, b in zip(own, its, strict=True))
    if not 0.0 < kept < 1.0:
        return ()
    more = candidates[other].worth / candidates[taken].worth - 1.0
    words = f"worth {more:.0%} more" if more >= 0.0 else f"worth {-more:.0%} less"
    return (
        f"kept: of those left the best, {words}, keeps its targets with {both / kept:.0%}, {before:.0%} before",
        f"missed: it keeps them with {(before - both) / (1.0 - kept):.0%}",
    )
