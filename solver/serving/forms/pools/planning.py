"""The search over prefill and decode pools, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.costmodels.queueing.load import Load
from meshwright.solver.answer.frontier import InteractivityPoint
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, SearchStats
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import prefill_layouts
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, FormSearch, beaten_of, floor_of
from meshwright.solver.serving.forms.pools.answer import (
    pools_certificate,
    pools_kept,
    pools_objective,
    pools_plan,
    pools_runner_up,
)
from meshwright.solver.serving.forms.pools.goodput import largest_pools_goodput
from meshwright.solver.serving.forms.pools.interactivity import pools_points
from meshwright.solver.serving.forms.pools.least_energy import least_energy_pools
from meshwright.solver.serving.forms.pools.search import PoolsResult, PoolsSearch
from meshwright.solver.serving.promise.kept import KeptPlan
from meshwright.solver.serving.workers.answer import leftover_notes
from meshwright.solver.serving.workers.interactivity import user_tokens_per_s

_WORTH_A_LOOK = 2.0
"""Plans of other forms are looked for up to so many times the cost of pools: runners-up, then."""


def search(asked: Asked) -> FormSearch | None:
    """Return the search over pools, None where the request does not allow them or no worker computes prompts."""
    if ServingMode.DISAGGREGATED not in asked.request.search.modes:
        return None
    prefill = _prefill_engines(asked)
    return SearchOfPools(asked, prefill) if prefill else None


def _prefill_engines(asked: Asked) -> list[Engine]:
    """Engines of prefill workers: those of all workers, and those whose ranks share prompts."""
    whole = {engine.key: engine for engine in _decode_engines(asked)}
    return [whole.get(layout.key) or asked.builder.engine(layout) for layout in prefill_layouts(asked.request)]


def _decode_engines(asked: Asked) -> list[Engine]:
    return [engine for engine in asked.question.engines if not engine.layout.repeats_answers]


class SearchOfPools(FormSearch):
    """Pools for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked, prefill: list[Engine]):
        self._asked, self._request, self._evaluator = asked, asked.request, asked.question.evaluator
        self._prefill = prefill
        self._search = PoolsSearch(asked.request, asked.question, prefill_engines=prefill, stop=asked.stop)
        self._result = PoolsResult()

    @property
    def worth_a_look(self) -> float:
        """Return a multiple of the cost of the pools that the analytic model thinks cheapest."""
        if self._request.objective in (Objective.DEVICES, Objective.COST):
            return _WORTH_A_LOOK * self._search.incumbent_cost()
        return math.inf

    def search(self, earlier: Earlier) -> None:
        """Look for pools that are better than the best plan so far; of equals that one stays."""
        match self._request.objective:
            case Objective.THROUGHPUT:
                above = 0.0 if earlier.objective == math.inf else 1.0 / earlier.objective
                self._result = largest_pools_goodput(self._search, above=above)
            case Objective.ENERGY:
                self._result = least_energy_pools(self._search, below=earlier.objective)
            case _:
                self._result = self._search.cheapest(below=earlier.objective)
        self._evaluator.simulations += self._search.simulations

    @property
    def objective(self) -> float:
        """Return the objective of the best pools."""
        return math.inf if self._result.best is None else pools_objective(self._request, self._result.best)

    def kept(self) -> tuple[KeptPlan, ...]:
        """Return the best pools."""
        best = self._result.best
        if best is None or not self._asked.is_enough(best.load):
            return ()
        return (pools_kept(self._request, best),)

    @property
    def floor(self) -> float:
        """Return the bound of a stopped search: of goodputs, and below pools that were found, there is none."""
        if not self._result.stopped:
            return math.inf
        is_bounded = self._result.best is None and self._request.objective is not Objective.THROUGHPUT
        return self._result.bound if is_bounded else 0.0

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped."""
        return self._result.stopped

    @property
    def considered(self) -> int:
        """Return how many pools were looked at."""
        return self._result.considered

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best pools."""
        best = self._result.best
        if best is None or not self._asked.is_enough(best.load):
            return None
        bound = 0.0 if self._result.stopped else min(self.objective, floor_of(others))
        plan = pools_plan(
            self._request,
            best,
            evaluator=self._evaluator,
            certificate=pools_certificate(self._request, best, bound=bound, space=self._asked.space),
            stats=stats,
            notes=(*notes, *leftover_notes(self._request, best.placed.devices)),
        )
        missed = [pools_runner_up(self._request, pools, "misses the targets") for pools in self._result.missed[-SHOWN:]]
        return replace(plan, runners_up=(*missed, *beaten_of(others, "is no better"))[:SHOWN])

    def beaten(self, why: str) -> tuple[RunnerUp, ...]:
        """Return the best pools."""
        best = self._result.best
        return () if best is None else (pools_runner_up(self._request, best, why),)

    def steady_points(self, load: Load) -> Iterator[InteractivityPoint]:
        """Yield rate-matched pools."""
        return pools_points(self._evaluator, self._prefill, _decode_engines(self._asked), load)

    def user_tokens_per_s(self) -> float | None:
        """Return the tokens per second of a user of the best pools, whose batches wait for no prompts."""
        assert self._result.best is not None, "its plan is the answer"
        decode = self._result.best.placed.decode
        return user_tokens_per_s(decode, self._evaluator, phases=ServingMode.DISAGGREGATED)
