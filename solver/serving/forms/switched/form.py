"""Workers that switch layouts, as a form of a serving plan, and the Plan that is handed out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.errors import InfeasibleError, ModelError, PlanFileError, WorkloadError
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.queueing.simulation.replica import pooled, timeline
from meshwright.costmodels.queueing.simulation.switched import SwitchedResult, pooled_switched
from meshwright.solver.answer.layouts import PromptPhase, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Reason, SearchStats
from meshwright.solver.answer.stage import Stage
from meshwright.solver.control import never_stop
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving.engines.calibrations import calibrations_used
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, Form, FormSearch, Misfit, beaten_of, floor_of
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder, SwitchedEngine, can_switch
from meshwright.solver.serving.forms.switched.evaluation import TwoLayouts, room_shortfall
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.certificates import objective_of, predicted_certificate, searched_certificate
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import KeptPlan, promised_of
from meshwright.solver.serving.promise.question import Cause, Found, Question, ServingSearchResult, least_replicas
from meshwright.solver.serving.workers.answer import (
    axes_of,
    decode_point,
    feasible_plan,
    kept_plans,
    leftover_notes,
    prompt_point,
    prompt_stage_s,
    replicas_of,
    runners_up,
    stages_of,
)
from meshwright.solver.serving.workers.cheapest import cheapest, choose_roomiest, of_equal_cost
from meshwright.solver.serving.workers.given import candidate_of, judged, one_plan_stats
from meshwright.solver.serving.workers.goodput import choose_roomiest_goodput, largest_goodput
from meshwright.solver.serving.workers.reasons import why_infeasible
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described

# The search over workers that switch layouts: every pair of layouts on the same devices, and their batch limits.
#
# Engines, bounds and the search itself are those of workers that do both phases in one layout; only what measures them
# differs.

_ROUNDING = 1e-9
"""Relative difference of two objectives that is rounding alone."""


def search(asked: Asked) -> FormSearch | None:
    """Return the search over workers that switch layouts, None where the request does not allow them."""
    return SwitchedSearch(asked) if ServingMode.SWITCHED in asked.request.search.modes else None


class SwitchedSearch(FormSearch):
    """Workers that switch layouts, for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked):
        self._asked, self._request = asked, asked.request
        shared = asked.question.evaluator
        self._evaluator = Evaluator(shared.workload, shared.promised, shared.seed, shared.stop, TwoLayouts)
        shortest = int(self._evaluator.traffic.whole.prompt_tokens.min())
        builder = SwitchedBuilder(asked.request, asked.builder, shortest_prompt=shortest)
        self._engines = list(builder.engines(asked.question.engines))
        self._question, self._result = asked.question, ServingSearchResult()
        self._earlier = Earlier(math.inf, math.inf, SearchStats(candidates=0, evaluated=0, seconds=0.0))

    def search(self, earlier: Earlier) -> None:
        """Look for workers whose objective is less than that of the best plan so far, if there are any; those that no bound
        refuses are searched."""
        self._earlier, below = earlier, earlier.objective
        asked = replace(
            self._asked.question,
            engines=self._engines,
            evaluator=self._evaluator,
            describe=self._so_far,
            at_most=earlier.at_most,
        )
        if self._request.objective is Objective.THROUGHPUT:
            asked = replace(asked, above=0.0 if below == math.inf else 1.0 / below)
        promising = [engine for engine in self._engines if _may_win(asked, engine, below)]
        self._question = replace(asked, engines=promising)
        is_goodput = self._request.objective is Objective.THROUGHPUT
        self._result = largest_goodput(self._question) if is_goodput else cheapest(self._question)
        self._asked.question.evaluator.simulations += self._evaluator.simulations

    def _so_far(self, now: ServingSearchResult) -> Plan | None:
        """The plan of the best so far, of which nothing is proven yet."""
        if now.best is None or not self._asked.is_enough(now.best.load):
            return None
        if objective_of(self._request, now.best, self._evaluator) >= self._earlier.objective:
            return None
        return self._plan(now.best, bound=0.0, stats=self._earlier.stats, notes=())

    @property
    def objective(self) -> float:
        """Return the objective of the best; infinite where it is no better than another plan by more than rounding."""
        if self._result.best is None:
            return math.inf
        objective = objective_of(self._request, self._result.best, self._evaluator)
        return objective if objective < self._earlier.objective * (1.0 - _ROUNDING) else math.inf

    def choose_roomiest(self) -> None:
        """Of plans as good as the best take the roomiest."""
        best = self._result.best
        if best is None or self._result.stopped:
            return
        if self._request.objective is Objective.THROUGHPUT:
            choose_roomiest_goodput(self._question, self._result)
        else:
            choose_roomiest(self._question, self._result, of_equal_cost(self._question, best))

    def kept(self) -> tuple[KeptPlan, ...]:
        """Return those that were met and keep the promise, the best one first."""
        found = self._result
        beaten = [each for each in found.beaten if self._asked.is_enough(each.load)]
        return kept_plans(self._request, replace(found, beaten=beaten), self._evaluator, more=1)

    @property
    def floor(self) -> float:
        """Return the bound of a stopped search."""
        return self._result.bound if self._result.stopped else math.inf

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped."""
        return self._result.stopped

    @property
    def considered(self) -> int:
        """Return how many batch limits were looked at."""
        return self._result.considered

    def notes(self) -> tuple[str, ...]:
        """Return notes on the number of pairs of layouts that memory, or a request alone, refuses at any rate, each with an
        example."""
        said = []
        for cause in (Cause.MEMORY, Cause.ALONE):
            refused = sorted((r for r in self._result.refused if r.cause is cause), key=lambda r: r.engine.key)
            if refused:
                last = refused[-1]
                count = f"{len(refused)} of {len(self._engines)} pairs of layouts that switch"
                said.append(f"Refused at any rate ({cause.value}): {count}; {last.engine.layout.name}: {last.why}")
        return tuple(said)

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best workers, where they are better than any other plan."""
        best = self._result.best
        if best is None or self.objective == math.inf or not self._asked.is_enough(best.load):
            return None
        # What follows describes the answer: a few simulations that the stopping rule no longer cuts off.
        self._evaluator.stop = never_stop
        bound = min(self._result.bound, floor_of(others))
        plan = self._plan(best, bound=bound, stats=stats, notes=(*notes, *leftover_notes(self._request, best.devices)))
        beaten = (*runners_up(self._request, self._result, self._evaluator), *beaten_of(others, "is no better"))
        return replace(plan, runners_up=tuple(sorted(beaten, key=lambda other: (other.objective, other.summary)))[:SHOWN])

    def _plan(self, found: Found, *, bound: float, stats: SearchStats, notes: Sequence[str]) -> Plan:
        space = self._asked.space
        return switched_plan(
            self._request,
            found,
            evaluator=self._evaluator,
            certificate=searched_certificate(self._request, found, self._evaluator, bound=bound, space=space),
            stats=stats,
            notes=notes,
        )

    def why_infeasible(self) -> Reason | None:
        """Return the constraint that refuses all pairs, where the request allows nothing else."""
        if self._request.search.modes != (ServingMode.SWITCHED,):
            return None
        self._evaluator.stop = never_stop
        if not self._engines:
            return Reason(
                constraint="divisibility",
                need=2.0,
                have=1.0,
                unit="layouts",
                message="no two different layouts of the request lie on the same devices of a node",
                remedies=("allow more values of search.tp and search.pp", "allow other search.modes"),
            )
        if any(self._evaluator.candidates(engine) for engine in self._engines):
            return why_infeasible(replace(self._question, engines=self._engines))
        limits = {"step_tokens": STEP_TOKENS[0], "sequences": SEQUENCES[0]}
        reasons = [room_shortfall(engine, self._evaluator, **limits) for engine in self._engines]
        return min(reasons, key=lambda reason: reason.need / max(reason.have, 1.0))


def _may_win(question: Question, engine: Engine, below: float) -> bool:
    """Return True if no bound says that an engine's objective is ``below`` at best; those without room are left to the
    search."""
    if below == math.inf or not question.evaluator.candidates(engine):
        return True
    if question.above:
        counts = question.counts(engine, 1, engine.layout.most_replicas)
        return bool(counts) and counts[-1] * question.evaluator.best_rate_bound(engine) > question.above
    return question.cost(engine, least_replicas(question, engine)) < below


# The cases in which switching layouts between prompts and answers is planned, and those in which it is refused.

_WITHOUT = f"or search.modes without {ServingMode.SWITCHED.value}"


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for switched layouts beside what they are not planned for."""
    if ServingMode.SWITCHED in request.search.modes:
        require_switchable(request)


def require_switchable(request: ServingRequest) -> None:
    """Refuse what layouts that switch are not planned for, whether or not a request asks for them.

    Raises WorkloadError, or ModelError for a model with recurrent states.
    """
    workload, search = request.workload, request.search
    if isinstance(workload.arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated with layouts that switch",
            given=workload.arrivals.process,
            allowed=f"poisson, gamma, trace; {_WITHOUT}",
        )
    if workload.speculation is not None:
        raise WorkloadError("drafted tokens are not planned with layouts that switch", allowed=f"no speculation; {_WITHOUT}")
    if workload.prefix_hit_ratio > 0.0 or workload.hits_by_request:
        raise WorkloadError(
            "a prefix cache does not outlive a change of layout",
            given="hits of the prefix cache in the workload",
            allowed=f"none; {_WITHOUT}",
        )
    if request.objective is Objective.ENERGY:
        raise WorkloadError(
            "layouts that switch are not searched for the least energy",
            given=request.objective.value,
            allowed=f"throughput, devices, cost; {_WITHOUT}",
        )
    if search.worker_kinds > 1:
        raise WorkloadError(
            "several kinds of workers are not planned with layouts that switch",
            given=f"search.worker_kinds {search.worker_kinds}",
            allowed=f"1; {_WITHOUT}",
        )
    if search.frontier is FrontierScope.SWEPT:
        raise WorkloadError(
            "throughput against interactivity is not drawn with layouts that switch",
            given=search.frontier.value,
            allowed=f"search.frontier {FrontierScope.VISITED.value}; {_WITHOUT}",
        )
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                raise ModelError(
                    "recurrent states are not moved between layouts that switch",
                    given=f"{block.name}/{operator.name}",
                    allowed=f"models of attention alone; {_WITHOUT}",
                )


_SPACE = (
    "; with layouts that switch: every pair of different ones on the same devices, whose number divides a node, without "
    "attention groups and kvp; steps of prompts and sequences of answers limited as above, as many prompts at once as steps "
    "can end; layouts change when no prompt waits or host memory is full, and when all of it is answered"
)


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space."""
    return _SPACE if ServingMode.SWITCHED in request.search.modes else ""


# A plan of workers that switch layouts as it was given: predicted anew, or simulated.


def predict(request: ServingRequest, plan: Plan, layout: Switched) -> Plan | Misfit:
    """The plan's workers with every figure predicted anew; or the reason, when they do not fit in memory or miss
    a target. Raises PlanFileError when the plan does not belong to the request."""
    given = GivenSwitched(request, layout)
    evaluator = given.evaluator
    shortfall = given.memory_shortfall()
    found = judged(request, plan.predicted, evaluator, given.candidate, given.share) if shortfall is None else shortfall
    stats = one_plan_stats(evaluator)
    if isinstance(found, Reason):
        return Misfit(found, stats)
    certificate = predicted_certificate(request, found, evaluator)
    return switched_plan(request, found, evaluator=evaluator, certificate=certificate, stats=stats, notes=())


class GivenSwitched:
    """The workers that a plan describes; raises PlanFileError when they are none of the request."""

    def __init__(self, request: ServingRequest, layout: Switched):
        require_switchable(request)
        self.evaluator = Evaluator(request.workload, promised_of(request), request.search.seed, running=TwoLayouts)
        prompts, _ = candidate_of(request, layout.prefill_workers, self.evaluator)
        answers, self.share = candidate_of(request, layout.decode_workers, self.evaluator)
        layouts = prompts.engine.layout, answers.engine.layout
        if (
            not all(map(can_switch, layouts))
            or layouts[0].group != layouts[1].group
            or layouts[0].devices != layouts[1].devices
        ):
            raise PlanFileError(
                "the plan's layouts do not switch on the same devices of a node",
                given=" and ".join(layout.name for layout in layouts),
                remedy="use layouts of as many devices, which divide a node, without attention_dp and kvp",
            )
        shortest = int(self.evaluator.traffic.whole.prompt_tokens.min())
        builder = EngineBuilder(request, sequence_tokens=self.evaluator.longest_request)
        self.engine: SwitchedEngine = SwitchedBuilder(request, builder, shortest_prompt=shortest).engine(
            prompts.engine,
            answers.engine,
            prompts_at_once=prompts.sequences,
            decode_step_tokens=answers.step_tokens,
        )
        self.candidate = Candidate(self.engine, prompts.step_tokens, answers.sequences)

    def memory_shortfall(self) -> Reason | None:
        """Return the memory that the workers lack to hold their longest request; None where there is room."""
        if TwoLayouts(self.evaluator.asked).has_room(self.candidate):
            return None
        limits = {"step_tokens": self.candidate.step_tokens, "sequences": self.candidate.sequences}
        return room_shortfall(self.engine, self.evaluator, **limits)

    def simulated(self) -> list[SwitchedResult]:
        """The workers under the request's load, every request's times."""
        return TwoLayouts(self.evaluator.asked).runs_of(self.candidate, self.share, requests=REQUESTS)


# Workers that switch layouts of a plan that was given, simulated.


def simulate(request: ServingRequest, layout: Switched) -> ServingSimulation:
    """Workers that switch layouts; busy is what stages of either layout do, not the changes between."""
    given = GivenSwitched(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    results = [run.whole for run in given.simulated()]
    alike = 1 if len(results) > 1 else given.share.replicas
    return described(given.evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike=alike)


FORM = Form("switched", Switched, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)


def switched_plan(
    request: ServingRequest,
    found: Found,
    *,
    evaluator: Evaluator,
    certificate: Certificate,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of workers that keep the promise."""
    engine = found.engine
    assert isinstance(engine, SwitchedEngine)
    plan = feasible_plan(
        request,
        found,
        evaluator=evaluator,
        certificate=certificate,
        stats=stats,
        notes=notes,
    )
    prompts = _of_prompts(found.measured, engine)
    points = prompt_point(prompts, evaluator), decode_point(found.measured, evaluator)
    stages = stages_of(prompts, prompt_stage_s(prompts, evaluator), first_rank=engine.layout.first_rank)
    answers = replicas_of(found, evaluator, first_rank=engine.layout.first_rank)
    answers = replace(answers, load=replace(answers.load, max_num_batched_tokens=engine.decode_step_tokens))
    assert plan.predicted is not None
    return replace(
        plan,
        layout=Switched(_prompts_of(found.measured, engine, evaluator, stages=stages), answers),
        calibration=calibrations_used(request, points),
        predicted=replace(
            plan.predicted,
            peak_memory_bytes=max(stage.memory.total_bytes for stage in (*answers.stages, *stages)),
        ),
    )


def _of_prompts(measured: Measured, engine: SwitchedEngine) -> Measured:
    """The worker while it computes prompts."""
    step_tokens = measured.candidate.step_tokens
    return replace(measured, candidate=Candidate(engine.prefill, step_tokens, engine.prompts_in_a_step(step_tokens)))


def _prompts_of(measured: Measured, engine: SwitchedEngine, evaluator: Evaluator, *, stages: tuple[Stage, ...]) -> PromptPhase:
    """Return the plan's part about prompts and changes; shares are those of one simulation under the worker's load."""
    runs = TwoLayouts(evaluator.asked).runs_of(measured.candidate, measured.share, requests=evaluator.traffic.requests)
    run, change = pooled_switched(runs), engine.change
    whole_s = run.prefill_s + run.decode_s + run.switching_s
    buffered = change.buffer_tokens * engine.host_token_bytes * engine.replicas_per_node
    step_tokens = measured.candidate.step_tokens
    return PromptPhase(
        axes=axes_of(engine.prefill.layout, measured.share.replicas),
        stages=stages,
        max_num_seqs=engine.prompts_in_a_step(step_tokens),
        max_num_batched_tokens=step_tokens,
        to_decode_bytes=engine.to_decode_bytes,
        to_prefill_bytes=engine.to_prefill_bytes,
        to_decode_s=change.to_decode_s,
        to_prefill_s=change.to_prefill_s,
        out_token_s=change.out_token_s,
        in_token_s=change.in_token_s,
        buffer_tokens=change.buffer_tokens,
        host_bytes=engine.host_weights_bytes + buffered,
        prefill_share=run.prefill_s / whole_s,
        switching_share=run.switching_s / whole_s,
        cycle_s=whole_s / max(1, run.phases),
    )
