"""Workers that switch layouts, as a form of a serving plan: whether they keep the promise, and the Plan that is handed out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import InfeasibleError, ModelError, PlanFileError, WorkloadError
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.queueing.analytic.capacity import Demand, least_work_s, mean_least_work_s
from meshwright.costmodels.queueing.analytic.percentiles import AnalyticFigures
from meshwright.costmodels.queueing.analytic.step_curves import first_token_s, token_s
from meshwright.costmodels.queueing.simulation.replica import NO_TARGETS, SimulationResult, Targets, Window, pooled, timeline
from meshwright.costmodels.queueing.simulation.switched import SwitchedResult, pooled_switched, simulate_switched
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
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, Form, FormSearch, Misfit, beaten_of, floor_of
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder, SwitchedEngine, can_switch
from meshwright.solver.serving.promise.candidates import (
    P95,
    SURELY_COUNTED,
    Alone,
    AskedLoad,
    Candidate,
    CandidateKey,
    EngineKey,
    Measured,
    largest_batch,
)
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
from meshwright.solver.serving.workers.reasons import memory_shortfall, why_infeasible
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described

# Does a worker that switches layouts keep the promise under a load? As for other workers: bounds first, then simulation.

_EVERYTHING = Window(warm_up=0.0, cool_down=0.0)


class TwoLayouts:
    """The way of workers that switch layouts; of each the step limit is that of prompts, the sequence limit that of answers."""

    def __init__(self, asked: AskedLoad):
        self._asked = asked
        self._candidates: dict[EngineKey, list[Candidate]] = {}
        self._rate_bounds: dict[CandidateKey, float] = {}
        self._least_work_s: dict[tuple[EngineKey, int], npt.NDArray[np.float64]] = {}
        self._alone: dict[tuple[CandidateKey, int], Alone] = {}

    def candidates(self, engine: Engine) -> list[Candidate]:
        """Batch limits with room for the longest request in both layouts and on the host, most first."""
        if engine.key not in self._candidates:
            every = (Candidate(engine, step, sequences) for step in STEP_TOKENS for sequences in reversed(SEQUENCES))
            self._candidates[engine.key] = [candidate for candidate in every if self.has_room(candidate)]
        return self._candidates[engine.key]

    def has_room(self, candidate: Candidate) -> bool:
        """Return True if both layouts and the host hold the longest request, a prompt with its first token, and a step a token
        of each sequence of a slot."""
        engine = _switched(candidate.engine)
        prompts, answers = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        per_slot = -(-candidate.sequences // engine.layout.pp)
        prompt = self._asked.traffic.longest_prompt
        held = prompts.limits.kv_tokens > prompt and answers.limits.kv_tokens >= self._asked.longest_request
        return held and engine.change.buffer_tokens >= prompt and per_slot <= engine.decode_step_tokens

    def alone(self, engine: Engine, step_tokens: int) -> Alone:
        """Times that no load makes shorter: to first token those of the prompt's 95th percentile; per token those of the
        shortest prompt, and the change of layout that every answer waits for."""
        switched, prompt = _switched(engine), int(self._asked.prompt.quantile(P95))
        step_tokens = min(step_tokens, max(STEP_TOKENS[0], prompt))
        key = (engine.key, step_tokens)
        if key not in self._alone:
            ttft_s = first_token_s(switched.prefill.times, prompt_tokens=prompt, cached_tokens=0, step_tokens=step_tokens)
            self._alone[key] = Alone(ttft_s, self._least_tpot_s(switched))
        return self._alone[key]

    def _least_tpot_s(self, engine: SwitchedEngine) -> float:
        """Return the lower bound on the 95th percentile of the time per token: of the counted requests at least 5% have so few
        tokens that the change takes as much of each."""
        stream, change = self._asked.traffic.whole, engine.change
        several = stream.output_tokens > 1
        if not several.any():
            return 0.0
        each = 1.0 / (stream.output_tokens[several] - 1)
        waited_s = change.to_decode_s + int(stream.prompt_tokens.min()) * (change.out_token_s + change.in_token_s)
        round_s = token_s(engine.decode.times, prompt_tokens=int(stream.prompt_tokens.min()), output_tokens=2)
        return round_s + waited_s * float(np.quantile(each, SURELY_COUNTED, method="lower"))

    def least_request_s(self, candidate: Candidate) -> float:
        """Return the least seconds that a mean device works for a mean request, in both layouts."""
        engine, key = _switched(candidate.engine), (candidate.engine.key, candidate.step_tokens)
        if key not in self._least_work_s:
            prompts = mean_least_work_s(engine.prefill.times, self._prompts, (candidate.step_tokens,))[0, 0]
            answers = mean_least_work_s(engine.decode.times, self._answers, (engine.decode_step_tokens,))[0]
            self._least_work_s[key] = prompts + answers
        return float(self._least_work_s[key][largest_batch(self._asked, candidate) - 1])

    def expected(self, candidate: Candidate, share: Share) -> AnalyticFigures:
        """A rough guess, for the order of the search alone: a cycle of both phases is as long as it takes for the work of what
        arrives in it and two changes of layout."""
        engine, bound = _switched(candidate.engine), self._rate_bound(candidate)
        load, change = share.each / bound, engine.change
        if load >= 1.0:
            return AnalyticFigures(load, bound, 0.0, math.inf, math.inf)
        alone = self.alone(engine, candidate.step_tokens)
        cycle_s = (change.to_decode_s + change.to_prefill_s + alone.ttft_s) / (1.0 - load)
        rounds = max(1.0, self._asked.output.mean - 1.0)
        return AnalyticFigures(load, bound, 0.0, alone.ttft_s + P95 * cycle_s, alone.tpot_s + cycle_s / 2.0 / rounds)

    def simulations_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SimulationResult]:
        """One worker under its share of a load; under a trace every one."""
        return [run.whole for run in self.runs_of(candidate, share, requests=requests, targets=targets)]

    def runs_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SwitchedResult]:
        """The same, with the time in each layout."""
        streams = self._asked.traffic.streams(share, requests)
        # Of several replicas none alone shows that the percentile of all is missed.
        early = targets if len(streams) == 1 else NO_TARGETS
        engine = _switched(candidate.engine)
        phases = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        return [simulate_switched(*phases, engine.change, stream, targets=early) for stream in streams]

    def saturated_per_s(self, candidate: Candidate) -> float:
        """Requests per second of a worker all of whose requests wait from the start."""
        (stream,) = self._asked.traffic.streams(Share(1.0))
        engine = _switched(candidate.engine)
        waiting = replace(stream, arrival_s=np.zeros(len(stream)))
        phases = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        run = simulate_switched(*phases, engine.change, waiting, window=_EVERYTHING)
        return len(stream) / run.whole.duration_s

    def _rate_bound(self, candidate: Candidate) -> float:
        if candidate.key not in self._rate_bounds:
            limits = candidate.step_tokens, candidate.sequences
            self._rate_bounds[candidate.key] = self.bounds_with(candidate)[limits]
        return self._rate_bounds[candidate.key]

    def bounds_with(self, asked: Candidate) -> dict[tuple[int, int], float]:
        """Bounds of a candidate and all others of its engine: both phases take their least work, or the time that keys and
        values take to the host and back, one after the other; and a full host changes layouts twice."""
        engine = _switched(asked.engine)
        candidates = (*self.candidates(engine), asked)
        steps = tuple(sorted({candidate.step_tokens for candidate in candidates}))
        prompts_s = least_work_s(engine.prefill.times, self._prompts, steps)[:, 0]
        answers_s = least_work_s(engine.decode.times, self._answers, (engine.decode_step_tokens,))[0]
        stream, change = self._asked.traffic.whole, engine.change
        staged = float((stream.prompt_tokens * (stream.output_tokens > 1)).mean())
        changes_s = (change.to_decode_s + change.to_prefill_s) * staged / change.buffer_tokens
        found = {}
        for candidate in candidates:
            batch = largest_batch(self._asked, candidate)
            if batch <= len(answers_s):
                prompt_s = max(float(prompts_s[steps.index(candidate.step_tokens)]), staged * change.out_token_s)
                answer_s = max(float(answers_s[batch - 1]), staged * change.in_token_s)
                found[candidate.step_tokens, candidate.sequences] = 1.0 / (prompt_s + answer_s + changes_s)
        return found

    @property
    def _prompts(self) -> Demand:
        return replace(self._asked.demand, rounds=0.0)

    @property
    def _answers(self) -> Demand:
        return replace(self._asked.demand, prompt_tokens=0.0, pairs=0.0)


def _switched(engine: Engine) -> SwitchedEngine:
    assert isinstance(engine, SwitchedEngine), "this evaluator is asked about workers that switch layouts"
    return engine


# The room that workers which switch layouts lack: memory in either layout, or on the host.


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


# The form, and the Plan that is handed out of it.

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
