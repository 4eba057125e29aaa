"""A plan of workers that switch layouts as it was given: predicted anew, or simulated."""

from __future__ import annotations

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.queueing.simulation.switched import SwitchedResult
from meshwright.solver.answer.layouts import Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.forms.form import Misfit
from meshwright.solver.serving.forms.switched.answer import switched_plan
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder, SwitchedEngine, can_switch
from meshwright.solver.serving.forms.switched.evaluation import TwoLayouts
from meshwright.solver.serving.forms.switched.room import room_shortfall
from meshwright.solver.serving.forms.switched.rules import require_switchable
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.certificates import predicted_certificate
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.workers.given import candidate_of, judged, one_plan_stats


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
