"""A launch command explained: read, measured against a request, predicted as the plan that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.app.base.solving import predict_here
from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import commands
from meshwright.app.launching.launchers.hugging_face import SHARDED_IN_FOUR_BITS
from meshwright.app.launching.parts.launch_files import NO_FILES, LaunchFiles
from meshwright.app.launching.parts.serving import degrees
from meshwright.app.launching.parts.stated import Stated, StatedServer, StatedTraining
from meshwright.app.launching.reading import EXAMPLE, read_command
from meshwright.app.models.catalog.copies import copy_of, format_of_name
from meshwright.app.models.catalog.huggingface_ids import catalogue_name_of
from meshwright.app.models.checkpoint import FIELD as QUANTISATION
from meshwright.app.models.checkpoint import checkpoint_format
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.model_words import is_here, model_of_words
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine, Task
from meshwright.app.requests.own_hardware import own_nodes
from meshwright.app.service.explaining.explanation import Better, Explanation, differences
from meshwright.app.service.explaining.measured import MeasuredFigure
from meshwright.app.service.explaining.server_plan import (
    broken_rules,
    length_notes,
    over_the_models,
    server_plan,
    too_long,
    too_long_before,
    with_memory_share,
)
from meshwright.app.service.explaining.slow import measured_answer
from meshwright.app.service.explaining.training_plan import broken_rules as broken_training_rules
from meshwright.app.service.explaining.training_plan import training_plan
from meshwright.costmodels.errors import ExportError, InvalidInputError
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.costmodels.model.adapter import BaseFormat
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import cache_room
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import PlanRequest, ServingRequest, Slo, TrainingRequest
from meshwright.solver.verify.violation import number_violations

# The request that a launch command is measured against: its model, the devices and the load, which options say.

_WHEN_LOADED: Mapping[str, dict[str, str]] = {
    "fp8": {"precision": DType.FP8.value},
    "w8a8_fp8": {"precision": DType.FP8.value},
    "bitsandbytes": {"precision": DType.BF16.value, "weights": WeightFormat.INT4.value},
}
"""Formats that engines bring 16-bit weights to when they load them, by their names for it."""


@dataclass(frozen=True, slots=True)
class Question:
    """The document of a request, and what was taken for granted in making it.

    open_document   the same for a better command, which may run otherwise what flags alone decide; None where nothing is
    when_loaded     formats of the workload that a command's flags bring weights of 16 bits to
    """

    document: dict[str, Any]
    notes: tuple[str, ...]
    open_document: dict[str, Any] | None = None
    when_loaded: Mapping[str, str] = field(default_factory=dict)


_WIDE = (WeightFormat.BF16, WeightFormat.FP16)

ModelOf = Callable[[str], Mapping[str, Any]]
"""The ``model`` of a request by the words that name it."""


def question_of(stated: Stated, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a command; raises InvalidInputError for what neither the command nor options say."""
    return _COMMANDS[stated.kind].question(stated, line, model_of)


def trained_question(stated: StatedTraining, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a training command. Options take the place of what the command says.

    Raises InvalidInputError for what neither says.
    """
    _require_own_launcher(stated, line)
    line = _with_cluster(stated, line)
    batch = line.batch or _batch(stated, line)
    seq = line.seq or (None if stated.seq_len is None else str(stated.seq_len))
    line = replace(line, task=Task.TRAIN, launcher=stated.launcher.value, batch=batch, seq=seq)
    notes: tuple[str, ...] = ()
    if stated.config is not None and not line.model:
        source = {"config": dict(stated.config), "name": stated.config["model_type"]}
        document = request_of_line(line, source=source)
    else:
        named, notes = named_model(line.model or stated.model, model_of)
        document = request_of_line(replace(line, model=named), source=model_of(named))
    work = document["workload"]
    given = {name: work[name] for name in ("adapter", "precision") if name in work}
    document["workload"] = work | dict(stated.workload) | given
    return Question(document, (*stated.notes, *notes), _opened(document))


def _opened(document: dict[str, Any]) -> dict[str, Any] | None:
    """The request with gradients that travel as the launcher has them: a better command may have the flags for it."""
    stated = dict(document["workload"].get("implementation") or {})
    if stated.pop("reduction", None) is None:
        return None
    work = {name: value for name, value in document["workload"].items() if name != "implementation"}
    return document | {"workload": work | ({"implementation": stated} if stated else {})}


def _batch(stated: StatedTraining, line: OneLine) -> str | None:
    """Sequences of a step: as the command says, or a micro-batch of each replica as often as it says."""
    if stated.global_batch is not None:
        return str(stated.global_batch)
    if stated.microbatch is None or stated.accumulation is None or line.gpus is None:
        return None
    world = stated.world or cluster_of_words(line.gpus, own_nodes()).n_devices
    replicas = max(1, world // (stated.tp * stated.pp * stated.cp))
    return str(stated.microbatch * stated.accumulation * replicas)


def _with_cluster(stated: Stated, line: OneLine) -> OneLine:
    """The line with the devices that the script asks Slurm for, where it names none."""
    if line.gpus is not None or stated.job is None:
        return line
    if stated.job.cluster is not None:
        return replace(line, gpus=stated.job.cluster)
    nodes, devices = stated.job.nodes, stated.job.devices
    raise InvalidInputError(
        "the script does not say which devices its job runs on",
        given=f"{nodes} nodes" if devices is None else f"{nodes} nodes of {devices} devices",
        allowed="--gpus, or their kind in the script: #SBATCH --gres=gpu:h100:8",
        remedy=f"add --gpus {nodes}x{devices or 8}xH100",
    )


def served_question(stated: StatedServer, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a server's command; raises InvalidInputError for what neither the command nor options say.

    ``line`` has the options; its model, where it has one, takes the place of the command's.
    """
    _require_own_launcher(stated, line)
    line = _with_cluster(stated, line)
    named, notes = named_model(line.model or stated.model, model_of)
    in_name = _format_in_name(stated.model) if line.model else {}
    line = replace(line, model=named, task=Task.SERVE, launcher=stated.launcher.value)
    document = request_of_line(line, source=model_of(named))
    engine = SERVERS[stated.launcher].engine
    document["search"] = {"launcher": stated.launcher.value, "engine": engine.value}
    work = document["workload"]
    when_loaded: dict[str, str] = {}
    if line.precision is None:
        dtype = {} if stated.flags.dtype is None else {"precision": stated.flags.dtype.value}
        when_loaded = dtype | _WHEN_LOADED.get((stated.flags.quantization or "").casefold(), {})
        when_loaded |= in_name
    if stated.flags.kv_dtype is not None:
        work["kv_dtype"] = stated.flags.kv_dtype.value
    if stated.flags.redundant_experts:
        work["experts"] = {"redundant_experts": stated.flags.redundant_experts}
    if stated.flags.draft_tokens is not None:
        notes = (*notes, "drafted tokens are not priced: no option says how many are kept")
    return Question(document, (*stated.notes, *notes), when_loaded=when_loaded)


def _format_in_name(name: str | None) -> dict[str, str]:
    """The formats that the command's own model has by its name, where an option says its sizes."""
    stored = None if name is None else format_of_name(name)
    if not isinstance(stored, Mapping):
        return {}
    found = checkpoint_format({QUANTISATION: stored})
    assert found is not None, "names stand for formats that are known"
    return {"precision": found.precision.value, "weights": found.weights.value, "quantised": found.quantised.value}


def named_model(text: str | None, model_of: ModelOf = model_of_words) -> tuple[str, tuple[str, ...]]:
    """Return the model that a command names, as a request would, and what was taken for granted."""
    if not text or "$" in text:
        raise InvalidInputError(
            "the command does not say its model" if not text else "the command's model is a variable of a shell",
            given=text,
            allowed="a catalogue name, an id of the Hugging Face Hub, a checkpoint's folder, a config.json",
            remedy="name it: --model Qwen/Qwen3-8B",
        )
    is_file = model_of is model_of_words and is_here(text)
    if is_file or "huggingface" not in model_of(text) or catalogue_name_of(text) is not None:
        return text, ()
    copy = copy_of(text)
    return text, (() if copy is None else (copy.said(text),))


def _require_own_launcher(stated: Stated, line: OneLine) -> None:
    if line.launcher not in (None, stated.launcher.value):
        raise InvalidInputError("the command starts another launcher", given=line.launcher, allowed=stated.launcher.value)


__all__ = ["EXAMPLE", "ReadCommand", "asked_of", "explained", "with_better", "with_measured"]

LEAST_GAIN = 0.01
"""Share of the objective from which on a plan is called better: rates are searched on a grid of 1%."""

Resolve = Callable[[dict[str, object]], PlanRequest]
Solve = Callable[[PlanRequest], Plan]


@dataclass(frozen=True, slots=True)
class ReadCommand:
    """A command that was read, and the request that it is measured against."""

    text: str
    stated: Stated
    question: Question
    request: PlanRequest
    open_request: PlanRequest | None = None


def asked_of(
    text: str, line: OneLine, resolve: Resolve, files: LaunchFiles = NO_FILES, model_of: ModelOf = model_of_words
) -> ReadCommand:
    """Return a command as it is read, and its request; raises InvalidInputError for what can't be read or is missing.

    ``resolve`` makes a request of a document, ``model_of`` its model of a name, ``files`` are those that the command may name.
    """
    stated = read_command(text, files)
    question = question_of(stated, line, model_of)
    opened = None if question.open_document is None else resolve(question.open_document)
    request = resolve(question.document)
    # What a checkpoint says of itself goes before flags, which quantise what is not.
    if question.when_loaded and isinstance(request, ServingRequest) and request.workload.weight_format in _WIDE:
        formats = {"workload": question.document["workload"] | dict(question.when_loaded)}
        request = resolve(question.document | formats)
    return ReadCommand(text, stated, question, request, opened)


def explained(asked: ReadCommand) -> Explanation:
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
    return _COMMANDS[stated.kind].explained(found, request, stated)


def _none_better(stated: StatedTraining) -> str:
    """Why no better command is searched for: it would start another program, or what is not counted may decide."""
    if stated.of_program:
        return f"a command of {stated.launcher.value} would start another program than {stated.of_program}"
    return "what is not counted may decide" if stated.not_counted else ""


def _trained(found: Explanation, request: TrainingRequest, stated: StatedTraining) -> Explanation:
    found = replace(found, not_counted=stated.not_counted, none_better=_none_better(stated))
    problems = broken_training_rules(request, stated)
    if problems:
        return replace(found, problems=problems)
    plan = training_plan(request, stated)
    at_load = replace(request, slo=Slo())
    predicted = predict_here(at_load, plan)
    wrong = next(number_violations(predicted), None)
    if wrong is not None:
        raise InvalidInputError("no cost model covers this command", given=str(wrong), allowed="figures that are not negative")
    adapter = request.workload.adapter
    if adapter is not None and adapter.base_format is BaseFormat.NF4 and stated.zero_stage == MAX_ZERO_STAGE:
        found = replace(found, notes=(*found.notes, SHARDED_IN_FOUR_BITS))
    judged = predicted if request.slo == Slo() else predict_here(request, plan)
    return replace(found, plan=predicted, reason=predicted.reason or judged.reason, at_load=at_load)


def _served(found: Explanation, request: ServingRequest, stated: StatedServer) -> Explanation:
    try:
        of_server = degrees(stated.flags, request.search.engine, experts=EXPERTS in request.model.dims)
    except InvalidInputError as error:
        return replace(found, problems=(error.problem,))
    problems = (
        *broken_rules(request, stated.flags, of_server),
        *over_the_models(request, stated.flags, stated.environment),
    )
    if problems:
        return replace(found, problems=problems)
    if of_server.tp > request.cluster.groups[0].node.devices_per_node:
        # Over nodes it runs, slowly, and no search would ask for it.
        request = replace(request, search=replace(request.search, tp=(of_server.tp,)))
    return _predicted(found, request, stated, server_plan(request, stated.flags, of_server))


def _predicted(found: Explanation, request: ServingRequest, stated: StatedServer, plan: Plan) -> Explanation:
    """The figures at the asked load, the highest rate, and the target that is missed."""
    assert isinstance(plan.layout, Replicas), "a server's command stands for equal replicas"
    # Figures of the asked load, whatever targets they miss.
    at_load = replace(request, objective=Objective.DEVICES, slo=Slo())
    first = predict_here(at_load, plan)
    workers = plan.layout.workers
    room = cache_room(request, workers)
    held = with_memory_share(request, first, room, stated.flags.memory_share)
    if held is not request:
        room = cache_room(held, workers)
    if room.free_bytes > 0.0 and (problems := too_long(request, stated.flags, room)):
        return replace(found, problems=problems)
    found = replace(found, notes=(*found.notes, *length_notes(request, stated.flags, room)))
    at_load = replace(at_load, cluster=held.cluster, search=held.search)
    predicted = first if held is request else predict_here(at_load, plan)
    if not predicted.feasible:
        return replace(found, reason=predicted.reason)
    judged = predict_here(held, plan)
    most = judged if judged.feasible and request.objective is Objective.THROUGHPUT else None
    dated = too_long_before(request, stated.flags, room, workers.max_num_seqs)
    return replace(found, problems=dated, plan=predicted, most=most, reason=judged.reason, at_load=at_load)


@dataclass(frozen=True, slots=True)
class CommandKind:
    """What asks and explains the commands of a kind of workload."""

    question: Callable[[Any, OneLine, ModelOf], Question]
    explained: Callable[[Explanation, Any, Any], Explanation]


_COMMANDS: Mapping[str, CommandKind] = {
    "training": CommandKind(trained_question, _trained),
    "serving": CommandKind(served_question, _served),
}
"""Commands by the kind of workload that they state."""


def with_measured(found: Explanation, asked: ReadCommand, figures: Sequence[MeasuredFigure]) -> Explanation:
    """Return the explanation with what explains figures that were measured.

    Raises InvalidInputError for figures that do not go with the workload, or with a command that has no prediction.
    """
    plan, request = found.plan, found.at_load
    if plan is None or plan.predicted is None or request is None:
        said = found.problems[0] if found.problems else "" if found.reason is None else found.reason.message
        raise InvalidInputError(
            f"nothing is predicted that a measurement could be compared with: {said}",
            given=", ".join(figure.text for figure in figures),
            remedy="give the command, the devices and the load that ran: explain without --measured says what does not fit",
        )
    return replace(found, measured=measured_answer(figures, request, plan, asked.stated))


def with_better(found: Explanation, solve: Solve) -> Explanation:
    """Return the explanation with the best plan of the request and launcher where it is better than the command's.

    The same explanation where a better command would start another kind of run.
    """
    if found.none_better:
        return found
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
