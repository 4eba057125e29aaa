"""The search over several kinds of workers, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.choices import Objective
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, FormSearch, beaten_of, floor_of
from meshwright.solver.serving.forms.kinds.answer import KindMeasured, first_ranks, kinds_objective, kinds_plan
from meshwright.solver.serving.forms.kinds.asked import kind_requests
from meshwright.solver.serving.forms.kinds.knapsack import Mix
from meshwright.solver.serving.forms.kinds.search import KindFound, MixResult, MixSearch
from meshwright.solver.serving.promise.certificates import bounded_certificate, proof
from meshwright.solver.serving.promise.question import replica_count
from meshwright.solver.serving.workers.answer import leftover_notes
from meshwright.solver.serving.workers.reasons import why_infeasible


def search(asked: Asked) -> FormSearch | None:
    """Return the search over several kinds of workers, None where the request allows one."""
    return KindsSearch(asked) if asked.request.search.worker_kinds > 1 else None


class KindsSearch(FormSearch):
    """Several kinds of workers for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked):
        self._asked, self._request, self._question = asked, asked.request, asked.question
        self._search = MixSearch(asked.request, asked.question)
        self._result = MixResult()
        self._below = math.inf

    def search(self, earlier: Earlier) -> None:
        """Look for a mix that is better than every plan of one kind; of equals that stays."""
        self._below = earlier.objective
        self._result = self._search.search(below=earlier.objective)

    @property
    def objective(self) -> float:
        """Return the objective of the best mix, before it is confirmed."""
        return math.inf if self._result.best is None else self._search.objective(self._result.best)

    @property
    def floor(self) -> float:
        """Return the bound of the search, below which a mix that was not confirmed may be."""
        return self._result.bound

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped before its bound refused all mixes."""
        return self._result.stopped and self._result.bound < math.inf

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best mix, which is confirmed by simulation; its candidates are counted where it is the answer."""
        kinds = self._search.settled(self._result, below=self._below)
        measured = [kind.measured for kind in kinds]
        total = math.fsum(each.share.load for each in measured)
        if not kinds or total < self._question.load * (1.0 - 1e-9):
            return None
        objective, bound = kinds_objective(self._request, measured), min(self._result.bound, floor_of(others))
        devices = sum(each.share.replicas * each.candidate.engine.layout.devices for each in measured)
        plan = kinds_plan(
            self._request,
            self._with_requests(kinds),
            certificate=bounded_certificate(self._request, objective, bound, proof(self._request, self._asked.space)),
            stats=replace(stats, candidates=stats.candidates + self._result.considered),
            notes=(*notes, *leftover_notes(self._request, devices)),
        )
        return replace(plan, runners_up=beaten_of(others, "keeps the targets, but a mix is better")[:SHOWN])

    def why_infeasible(self) -> Reason | None:
        """Return why no plan of one kind keeps a load, and how much several kinds do."""
        reason = why_infeasible(self._question)
        if reason.constraint != "requests_per_s":
            return reason
        search = MixSearch(replace(self._request, objective=Objective.THROUGHPUT), self._question)
        mix = search.search(below=math.inf).best
        if mix is None or mix.rate <= reason.have:
            return reason
        message = (
            f"all devices together keep the targets up to {mix.rate:.3g} requests/s ({self._described(mix)}), "
            f"{self._question.load:g} are asked for"
        )
        need = max(reason.need, math.nextafter(mix.rate, math.inf))
        return replace(reason, need=need, have=mix.rate, message=message)

    def _described(self, mix: Mix) -> str:
        named = [(self._search.engine(place).layout.name, replicas) for place, replicas in mix.parts]
        return " beside ".join(f"{replica_count(replicas)} of {name}" for name, replicas in named)

    def _with_requests(self, kinds: Sequence[KindFound]) -> list[KindMeasured]:
        loads = [kind.measured.share.load for kind in kinds]
        asked = kind_requests(self._request, [kind.share for kind in kinds], loads)
        firsts = first_ranks([kind.measured for kind in kinds])
        return [
            KindMeasured(own, self._question.evaluator, kind.measured, kind.share, first)
            for kind, own, first in zip(kinds, asked, firsts, strict=True)
        ]
