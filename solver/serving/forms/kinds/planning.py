"""Where a request allows several kinds of workers: their search beside that of one kind, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.kinds.answer import KindMeasured, first_ranks, kinds_objective, kinds_plan
from meshwright.solver.serving.forms.kinds.asked import kind_requests
from meshwright.solver.serving.forms.kinds.knapsack import Mix
from meshwright.solver.serving.forms.kinds.search import KindFound, MixResult, MixSearch
from meshwright.solver.serving.promise.certificates import bounded_certificate, proof
from meshwright.solver.serving.promise.question import Question, replica_count
from meshwright.solver.serving.workers.answer import leftover_notes


class KindsSearch:
    """The search of several kinds of workers for one question."""

    def __init__(self, request: ServingRequest, question: Question):
        self._request, self._question = request, question
        self._search = MixSearch(request, question)
        self.result = MixResult()
        self._below = math.inf

    def run(self, *, below: float) -> None:
        """Look for a mix whose objective is less than ``below``, that of the best plan of one kind."""
        self._below = below
        self.result = self._search.search(below=below)

    def plan(self, stats: SearchStats, notes: Sequence[str], *, bound: float) -> Plan | None:
        """The plan of the best mix, which is confirmed by simulation; None where it is no better than one kind, or less than
        was asked for. ``bound`` is what is proven of all other plans."""
        kinds = self._search.settled(self.result, below=self._below)
        measured = [kind.measured for kind in kinds]
        total = math.fsum(each.share.load for each in measured)
        if not kinds or total < self._question.load * (1.0 - 1e-9):
            return None
        objective, space = kinds_objective(self._request, measured), proof(self._request)
        certificate = bounded_certificate(self._request, objective, min(bound, self.result.bound), space)
        devices = sum(each.share.replicas * each.candidate.engine.layout.devices for each in measured)
        evaluated = replace(stats, candidates=stats.candidates + self.result.considered)
        return kinds_plan(
            self._request,
            self._with_requests(kinds),
            certificate=certificate,
            stats=evaluated,
            notes=(*notes, *leftover_notes(self._request, devices)),
        )

    def explained(self, reason: Reason) -> Reason:
        """The reason why no plan of one kind keeps a load, and how much several kinds do."""
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
