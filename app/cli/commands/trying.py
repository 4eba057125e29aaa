"""``plan --trials`` and ``plan --next``: plans to run one after another."""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy import Engine

from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.cli.commands.planning import Output, PlanCommand, Store, plan_of, request_of
from meshwright.app.documents.output_files import is_stdout
from meshwright.app.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.runs.serving_trials import outcomes_of, under_serving_digests
from meshwright.app.runs.trials import AnyTrial, not_yet_run, summary_of, trials_document, under_digests, write_trials
from meshwright.app.settings import Settings
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.serving.trials import ServingTrial
from meshwright.solver.training.report.trials import MOST_TRIALS, Trial


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
    from meshwright.app.db.engine import open_engine
    from meshwright.app.db.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    try:
        ensure_ready(engine)
        return _ordered(request, plan, engine)
    finally:
        engine.dispose()


def _ordered(request: PlanRequest, plan: Plan, engine: Engine | None) -> tuple[AnyTrial, ...]:
    """The trials of a request in order; with a database without those whose runs it holds."""
    from meshwright.app.solving import serving_trials_here, trials_here

    if isinstance(request, TrainingRequest):
        trials = under_digests(trials_here(request, plan, most=MOST_TRIALS))
        return trials if engine is None else not_yet_run(trials, request, engine)
    has_kept = outcomes_of(request, engine) if engine is not None else lambda each: None
    return under_serving_digests(serving_trials_here(request, plan, most=MOST_TRIALS, has_kept=has_kept))


def _print(trials: tuple[AnyTrial, ...], folder: Path | None) -> None:
    if not trials:
        tell("Every plan that was worth a trial has run.")
    for number, trial in enumerate(trials, start=1):
        for line in _serving_lines(number, trial) if isinstance(trial, ServingTrial) else _training_lines(number, trial):
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
