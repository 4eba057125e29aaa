"""A launch command explained: read, measured against a request, predicted as the plan that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.app.explaining.explanation import Better, Explanation
from meshwright.app.explaining.flag_differences import differences
from meshwright.app.explaining.launch_files import NO_FILES, LaunchFiles
from meshwright.app.explaining.question import ModelOf, Question, question_of
from meshwright.app.explaining.reading import EXAMPLE, read_command
from meshwright.app.explaining.server_plan import server_plan, with_memory_share
from meshwright.app.explaining.serving_rules import broken_rules
from meshwright.app.explaining.stated import Stated, StatedServer, StatedTraining
from meshwright.app.explaining.training_plan import broken_rules as broken_training_rules
from meshwright.app.explaining.training_plan import training_plan
from meshwright.app.exporters import export
from meshwright.app.exporters.launch import commands
from meshwright.app.launch_flags.serving import degrees
from meshwright.app.solving import predict_here
from meshwright.app.ways_in.model_words import model_of_words
from meshwright.app.ways_in.one_line import OneLine
from meshwright.costmodels.errors import ExportError, InvalidInputError
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import PlanRequest, ServingRequest, Slo, TrainingRequest

__all__ = ["EXAMPLE", "Asked", "asked_of", "explained", "with_better"]

LEAST_GAIN = 0.01
"""Share of the objective from which on a plan is called better: rates are searched on a grid of 1%."""

Resolve = Callable[[dict[str, object]], PlanRequest]
Solve = Callable[[PlanRequest], Plan]


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that was read, and the request that it is measured against."""

    text: str
    stated: Stated
    question: Question
    request: PlanRequest
    open_request: PlanRequest | None = None


def asked_of(
    text: str, line: OneLine, resolve: Resolve, files: LaunchFiles = NO_FILES, model_of: ModelOf = model_of_words
) -> Asked:
    """Return a command as it is read, and its request; raises InvalidInputError for what can't be read or is missing.

    ``resolve`` makes a request of a document, ``model_of`` its model of a name, ``files`` are those that the command may name.
    """
    stated = read_command(text, files)
    question = question_of(stated, line, model_of)
    opened = None if question.open_document is None else resolve(question.open_document)
    return Asked(text, stated, question, resolve(question.document), opened)


def explained(asked: Asked) -> Explanation:
    """Return what a command does; raises InvalidInputError for a layout that no plan has."""
    request, stated = asked.request, asked.stated
    found = Explanation(
        launcher=stated.launcher,
        command=asked.text,
        request=request,
        given=stated.given,
        notes=asked.question.notes,
        open_request=asked.open_request,
    )
    if isinstance(stated, StatedTraining):
        assert isinstance(request, TrainingRequest), "a training command asks a training request"
        return _trained(found, request, stated)
    assert isinstance(request, ServingRequest), "the command of a server asks a serving request"
    return _served(found, request, stated)


def _trained(found: Explanation, request: TrainingRequest, stated: StatedTraining) -> Explanation:
    problems = broken_training_rules(request, stated)
    if problems:
        return replace(found, problems=problems)
    plan = training_plan(request, stated)
    predicted = predict_here(replace(request, slo=Slo()), plan)
    judged = predicted if request.slo == Slo() else predict_here(request, plan)
    return replace(found, plan=predicted, reason=predicted.reason or judged.reason)


def _served(found: Explanation, request: ServingRequest, stated: StatedServer) -> Explanation:
    try:
        of_server = degrees(stated.flags, request.search.engine, experts=EXPERTS in request.model.dims)
    except InvalidInputError as error:
        return replace(found, problems=(error.problem,))
    problems = broken_rules(request, stated.flags, of_server)
    if problems:
        return replace(found, problems=problems)
    return _predicted(found, request, stated, server_plan(request, stated.flags, of_server))


def _predicted(found: Explanation, request: ServingRequest, stated: StatedServer, plan: Plan) -> Explanation:
    """The figures at the asked load, the highest rate, and the target that is missed."""
    # Figures of the asked load, whatever targets they miss.
    at_load = replace(request, objective=Objective.DEVICES, slo=Slo())
    first = predict_here(at_load, plan)
    held = with_memory_share(request, first, stated.flags.memory_share)
    at_load = replace(at_load, cluster=held.cluster)
    predicted = first if held is request else predict_here(at_load, plan)
    if not predicted.feasible:
        return replace(found, reason=predicted.reason)
    judged = predict_here(held, plan)
    most = judged if judged.feasible and request.objective is Objective.THROUGHPUT else None
    return replace(found, plan=predicted, most=most, reason=judged.reason)


def with_better(found: Explanation, solve: Solve) -> Explanation:
    """Return the explanation with the best plan of the request and launcher where it is better than the command's."""
    request = found.open_request or found.request
    plan = solve(request)
    if not plan.feasible:
        return found.with_better(None)
    own, best = (None if each is None else each.certificate.objective for each in (found.most or found.plan, plan))
    judged = None if found.problems or found.reason is not None else own
    gain = None if judged is None or best is None else 1.0 - best / judged
    if gain is not None and gain < LEAST_GAIN:
        return found.with_better(None)
    try:
        command = commands(export(plan, request, found.launcher.value))
    except ExportError:
        return found.with_better(None)
    return found.with_better(Better(plan, command, gain, differences(found.given, read_command(command).given)))
