"""The search over workers that switch layouts: every pair of layouts on the same devices, and their batch limits.

Engines, bounds and the search itself are those of workers that do both phases in one layout; only what measures them differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.answer.reason import Reason
from meshwright.solver.control import never_stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS
from meshwright.solver.serving.forms.switched.answer import switched_plan
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder, SwitchedEngine
from meshwright.solver.serving.forms.switched.evaluation import SwitchedEvaluator
from meshwright.solver.serving.promise.certificates import objective_of
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.question import Cause, Found, Question, SearchResult, least_replicas
from meshwright.solver.serving.workers.cheapest import cheapest, of_equal_cost
from meshwright.solver.serving.workers.goodput import choose_roomiest_goodput, largest_goodput
from meshwright.solver.serving.workers.reasons import memory_shortfall, why_infeasible
from meshwright.solver.serving.workers.roomiest import choose_roomiest

_ROUNDING = 1e-9
"""Relative difference of two objectives that is rounding alone."""


@dataclass
class SwitchedSearch:
    """Workers that switch layouts, for one request: what was asked of them, and what was found."""

    request: ServingRequest
    question: Question
    engines: list[SwitchedEngine]
    evaluator: SwitchedEvaluator
    result: SearchResult

    def stats(self, earlier: SearchStats) -> SearchStats:
        """With what was searched before."""
        return replace(earlier, candidates=earlier.candidates + self.result.considered)

    def floor(self) -> float:
        """Return the lower bound on the objective where the search was stopped, else infinity."""
        return self.result.bound if self.result.stopped else math.inf

    def is_enough(self, load: float) -> bool:
        """Return True if the best answers the load that is asked for: of goodput, at least that."""
        best = self.result.best
        return best is not None and (self.request.objective is not Objective.THROUGHPUT or best.load >= load)

    def choose_roomiest(self) -> None:
        """Of plans as good as the best the roomiest, and figures without a stopping rule."""
        self._look_for_room()
        self.evaluator.stop = never_stop

    def _look_for_room(self) -> None:
        best = self.result.best
        if best is None or self.result.stopped:
            return
        if self.request.objective is Objective.THROUGHPUT:
            choose_roomiest_goodput(self.question, self.result)
        else:
            choose_roomiest(self.question, self.result, of_equal_cost(self.question, best))

    def is_better_than(self, objective: float) -> bool:
        """Return True if the best is better than another plan's objective; of equals the other stays."""
        best = self.result.best
        return best is not None and objective_of(self.request, best, self.evaluator) < objective * (1.0 - _ROUNDING)

    def notes(self) -> tuple[str, ...]:
        """Return notes on the number of pairs of layouts that memory, or a request alone, refuses at any rate, each with an
        example."""
        said = []
        for cause in (Cause.MEMORY, Cause.ALONE):
            refused = sorted((r for r in self.result.refused if r.cause is cause), key=lambda r: r.engine.key)
            if refused:
                last = refused[-1]
                count = f"{len(refused)} of {len(self.engines)} pairs of layouts that switch"
                said.append(f"Refused at any rate ({cause.value}): {count}; {last.engine.layout.name}: {last.why}")
        return tuple(said)

    def why_infeasible(self) -> Reason:
        """The constraint that refuses all pairs."""
        if not self.engines:
            return Reason(
                constraint="divisibility",
                need=2.0,
                have=1.0,
                unit="layouts",
                message="no two different layouts of the request lie on the same devices of a node",
                remedies=("allow more values of search.tp and search.pp", "allow other search.modes"),
            )
        if any(self.evaluator.candidates(engine) for engine in self.engines):
            return why_infeasible(replace(self.question, engines=self.engines))
        reasons = [self.shortfall(engine) for engine in self.engines]
        return min(reasons, key=lambda reason: reason.need / max(reason.have, 1.0))

    def shortfall(self, engine: SwitchedEngine) -> Reason:
        """Return the memory that a worker lacks most to hold its longest request, with the smallest batch limits."""
        return room_shortfall(engine, self.evaluator, step_tokens=STEP_TOKENS[0], sequences=SEQUENCES[0])


def room_shortfall(engine: SwitchedEngine, evaluator: Evaluator, *, step_tokens: int, sequences: int) -> Reason:
    """Return the room that a worker lacks most to hold its longest request: memory in either layout, or on the host."""
    prompt, longest = evaluator.traffic.longest_prompt, evaluator.longest_request
    at_once = engine.prompts_in_a_step(step_tokens)
    node = engine.layout.group.node
    need = engine.host_weights_bytes + engine.replicas_per_node * prompt * engine.host_token_bytes
    have = float(node.host_memory_bytes)
    message = (
        f"host memory of {node.name} must hold {need / 1e9:.1f} GB: the weights, and keys and values of a prompt of {prompt} "
        f"tokens for each of {engine.replicas_per_node} workers; it has {have / 1e9:.1f} GB"
    )
    reasons = [
        memory_shortfall(engine.prefill, step_tokens=step_tokens, sequences=at_once, tokens=prompt + 1),
        memory_shortfall(engine.decode, step_tokens=engine.decode_step_tokens, sequences=sequences, tokens=longest),
        Reason("host_memory", need, have, "bytes", message, remedies=("raise host_memory_bytes of the node",)),
    ]
    return max(reasons, key=lambda reason: reason.need / max(reason.have, 1.0))


def search_switched(
    request: ServingRequest, question: Question, builder: EngineBuilder, *, below: float, earlier: SearchStats
) -> SwitchedSearch:
    """Workers that switch layouts whose objective is less than ``below``, if there are any; those that no bound refuses are
    searched. ``earlier`` is what was searched before."""
    asked_of = question.evaluator
    evaluator = SwitchedEvaluator(asked_of.workload, asked_of.slo, asked_of.seed, asked_of.stop)
    shortest = int(evaluator.traffic.whole.prompt_tokens.min())
    engines = list(SwitchedBuilder(request, builder, shortest_prompt=shortest).engines(question.engines))

    def describe(now: SearchResult) -> Plan | None:
        if now.best is None or objective_of(request, now.best, evaluator) >= below or _falls_short(request, question, now.best):
            return None
        return switched_plan(request, now.best, evaluator=evaluator, bound=0.0, stats=earlier, notes=())

    asked = replace(question, engines=engines, evaluator=evaluator, describe=describe)
    if request.objective is Objective.THROUGHPUT:
        asked = replace(asked, above=0.0 if below == math.inf else 1.0 / below)
    promising = replace(asked, engines=[engine for engine in engines if _may_win(asked, engine, below)])
    result = largest_goodput(promising) if request.objective is Objective.THROUGHPUT else cheapest(promising)
    return SwitchedSearch(request, promising, engines, evaluator, result)


def _falls_short(request: ServingRequest, question: Question, found: Found) -> bool:
    """Return True if a goodput is less than what was asked for."""
    return request.objective is Objective.THROUGHPUT and found.load < question.load


def _may_win(question: Question, engine: Engine, below: float) -> bool:
    """Return True if no bound says that an engine's objective is ``below`` at best; those without room are left to the
    search."""
    if below == math.inf or not question.evaluator.candidates(engine):
        return True
    if question.above:
        counts = question.counts(engine, 1, engine.layout.most_replicas)
        return bool(counts) and counts[-1] * question.evaluator.best_rate_bound(engine) > question.above
    return question.cost(engine, least_replicas(question, engine)) < below
