"""A request in one line: from options, and questions on a terminal, to a document that is planned or kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from sqlalchemy import Engine

from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.output_files import is_stdout, write_output
from meshwright.app.base.quoting import terminal_line
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, say, tell
from meshwright.app.cli.commands.planning import PlanCommand, Store, plan_of, request_of
from meshwright.app.requests.files import STDIN, FilesBeside, given_request
from meshwright.app.requests.model_words import looks_like_a_model
from meshwright.app.requests.one_line import example, request_of_line, request_yaml
from meshwright.app.requests.options import OF_TASK, OPTIONS, OneLine, Task
from meshwright.app.requests.own_hardware import own_nodes
from meshwright.app.requests.several_clusters import clusters_in
from meshwright.app.service.trials import (
    AnyTrial,
    not_yet_run,
    outcomes_of,
    summary_of,
    trials_document,
    under_digests,
    under_serving_digests,
    write_trials,
)
from meshwright.costmodels.errors import InvalidInputError, ModelError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.serving.trials import ServingTrial
from meshwright.solver.training.report.trials import MOST_TRIALS, Trial


def line_document(line: OneLine, *, download: bool) -> str | dict[str, Any]:
    """Return the path of a request, or the document that options ask for; raises InvalidInputError."""
    if line.is_asked:
        return _document(line, download=download)
    if line.model != STDIN and not _is_there(line.model) and looks_like_a_model(line.model):
        raise ModelError(
            "there is no request file of this name, and a model needs devices and work",
            given=line.model,
            allowed="a request file; or a model with --gpus, and --serve or --train",
            remedy=example(line.model),
        )
    return line.model


def named_clusters(line: OneLine) -> tuple[str, ...]:
    """Return the words of each cluster that a line names; none where it names no devices."""
    return () if line.gpus is None else clusters_in(line.gpus, own_nodes())


def asks_several(line: OneLine) -> bool:
    """Return True if the options name several clusters, or no devices for what they ask."""
    return line.is_asked and len(named_clusters(line)) != 1


def print_line(line: OneLine, *, download: bool) -> int:
    """Print the request of a line as YAML, of several clusters a document each; they are read first, so that what is printed
    can be planned."""
    if not line.is_asked:
        raise InvalidInputError("--print-request prints what options ask for", given=line.model, remedy=example("qwen3-8b"))
    lines = [replace(line, gpus=words) for words in named_clusters(line)] or [line]
    texts = [request_yaml(_document(each, download=download)) for each in lines]
    sys.stdout.write("---\n".join(texts))
    return EXIT_GOOD


def write_line(line: OneLine, file: Path | None, *, download: bool) -> int:
    """Write the request of a line to a file, or to stdout, once it has been read."""
    several = named_clusters(line)
    if len(several) > 1:
        raise InvalidInputError(
            "a request has one cluster",
            given=f"{len(several)} clusters",
            allowed="one; '+' joins node groups to one",
            remedy="write one for each, or plan them: 'meshwright plan' takes several",
        )
    text = request_yaml(_document(line, download=download))
    if file is None or is_stdout(file):
        sys.stdout.write(text)
    else:
        write_output(file, text, what="request")
        print(terminal_line(f"wrote {file}; plan it with: meshwright plan {file}"), file=sys.stderr)
    return EXIT_GOOD


def completed(line: OneLine) -> OneLine:
    """Return the line with the answers to questions for what is missing; as it is where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if not line.model:
            raise InvalidInputError(
                "the model is missing",
                allowed="meshwright init MODEL --gpus 8xH100 ...",
                remedy=example("qwen3-8b").replace("plan", "init", 1),
            )
        return line
    line = replace(
        line,
        model=line.model or _ask("Model (qwen3-8b, ORG/NAME, a folder, a config.json)"),
        gpus=line.gpus or _ask("Devices (8xH100, 3x8xH100@400Gb, 5 of 8 H100)"),
    )
    if line.task is None:
        answer = _ask("Serve or train").strip().casefold()
        line = replace(line, task=Task.TRAIN if answer.startswith("t") else Task.SERVE)
    task = line.task or Task.SERVE
    asked = [name for name in OF_TASK[task] if OPTIONS[name].label and name != "concurrency"]
    missing = [name for name in asked if getattr(line, name) is None]
    if line.concurrency is not None and "rate" in missing:
        missing.remove("rate")
    answers: dict[str, Any] = {name: _ask(OPTIONS[name].question) or None for name in missing}
    return replace(line, **answers)


def _ask(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True))


def fetch_model(line: OneLine, *, download: bool) -> None:
    """Fetch the configuration of a line's model, where that is asked for."""
    if download:
        from meshwright.app.requests.model_words import download_config

        download_config(line.model)


def _document(line: OneLine, *, download: bool) -> dict[str, Any]:
    """Return the document of a line, read once so that its faults are told."""
    fetch_model(line, download=download)
    document = request_of_line(line)
    given_request(document, files=FilesBeside(Path()))
    return document


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


# ``plan --trials`` and ``plan --next``: plans to run one after another.


def run_trials(command: PlanCommand, most: int | None, folder: Path | None, settings: Settings) -> int:
    """Print and write up to ``most`` trials of a request, or with None the next one after those that have run.

    Exit code 1 when nothing fits, or everything has run.
    """
    if folder is not None and is_stdout(folder):
        raise InvalidInputError("trials are written into a folder", given=str(folder), remedy="name a folder")
    if command.pictures:
        given = ", ".join(f"--{kind.value}" for kind in command.pictures)
        raise InvalidInputError("several trials are in no one picture", given=given, remedy="plan without --trials and --next")
    request = request_of(command, settings)
    plan = plan_of(request, command, settings)
    if not plan.feasible:
        assert plan.reason is not None, "an infeasible plan says why"
        say(plan.reason.message)
        return EXIT_NO
    found = _found(request, plan, settings, use_store=command.store is not Store.NONE)
    trials = found[:1] if most is None else found[:most]
    if folder is not None:
        write_trials(trials, request, folder)
    if command.output is Output.JSON:
        print_json(trials_document(trials))
    else:
        _print(trials, folder)
    return EXIT_GOOD if trials else EXIT_NO


def _found(request: PlanRequest, plan: Plan, settings: Settings, *, use_store: bool) -> tuple[AnyTrial, ...]:
    """The trials that have not run yet."""
    if not use_store:
        return _ordered(request, plan, None)
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    try:
        ensure_ready(engine)
        return _ordered(request, plan, engine)
    finally:
        engine.dispose()


def _ordered(request: PlanRequest, plan: Plan, engine: Engine | None) -> tuple[AnyTrial, ...]:
    """The trials of a request in order; with a database without those whose runs it holds."""
    return _TRIALS[request.workload.kind].ordered(request, plan, engine)


def _training_trials(request: TrainingRequest, plan: Plan, engine: Engine | None) -> tuple[Trial, ...]:
    from meshwright.app.base.solving import trials_here

    trials = under_digests(trials_here(request, plan, most=MOST_TRIALS))
    return trials if engine is None else not_yet_run(trials, request, engine)


def _serving_trials(request: ServingRequest, plan: Plan, engine: Engine | None) -> tuple[ServingTrial, ...]:
    from meshwright.app.base.solving import serving_trials_here

    has_kept = outcomes_of(request, engine) if engine is not None else lambda each: None
    return under_serving_digests(serving_trials_here(request, plan, most=MOST_TRIALS, has_kept=has_kept))


def _print(trials: tuple[AnyTrial, ...], folder: Path | None) -> None:
    if not trials:
        tell("Every plan that was worth a trial has run.")
    for number, trial in enumerate(trials, start=1):
        for line in _TRIALS[trial.plan.kind].lines(number, trial):
            tell(line)
        for sentence in trial.tells:
            tell(f"   {sentence}")
        if folder is not None:
            tell(f"   {folder / f'trial-{number}'}")
    sys.stdout.flush()


def _training_lines(number: int, trial: Trial) -> tuple[str, str]:
    predicted = trial.plan.predicted
    assert predicted is not None and predicted.step_time_s is not None, "a trial is a feasible training plan"
    return (
        f"{number}. {summary_of(trial.plan)}: {predicted.step_time_s:.3g} s a step",
        f"   {predicted.peak_memory_bytes / GIB:.1f} GiB, {trial.chance_out_of_memory:.1%} chance to run out of memory; "
        f"regret of the best so far {trial.expected_regret:.1%}",
    )


def _serving_lines(number: int, trial: ServingTrial) -> tuple[str, str]:
    predicted = trial.plan.predicted
    assert predicted is not None, "a trial is a feasible serving plan"
    devices = "1 device" if trial.plan.devices == 1 else f"{trial.plan.devices} devices"
    return (
        f"{number}. {summary_of(trial.plan)}: {predicted.tokens_per_s:,.0f} tokens/s on {devices}",
        f"   {trial.chance_kept:.0%} chance to keep the targets; regret of the best so far {trial.expected_regret:.1%}",
    )


@dataclass(frozen=True, slots=True)
class KindTrials:
    """The trials of a request of a kind of workload in order, and the lines that are printed of one."""

    ordered: Callable[[Any, Plan, Engine | None], tuple[AnyTrial, ...]]
    lines: Callable[[int, Any], Iterable[str]]


_TRIALS: Mapping[str, KindTrials] = {
    "training": KindTrials(_training_trials, _training_lines),
    "serving": KindTrials(_serving_trials, _serving_lines),
}
"""Trials by the kind of workload."""
