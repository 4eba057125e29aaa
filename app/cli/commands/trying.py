"""``plan --trials`` and ``plan --next``: plans to run one after another."""

from __future__ import annotations

import sys
from pathlib import Path

from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.cli.commands.planning import Output, PlanCommand, Store, plan_of, request_of
from meshwright.app.documents.output_files import is_stdout
from meshwright.app.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.runs.trials import not_yet_run, summary_of, trials_document, under_digests, write_trials
from meshwright.app.settings import Settings
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import TrainingRequest
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
    if not isinstance(request, TrainingRequest):
        raise WorkloadError("only training has trials", given=request.workload.kind, allowed="a training workload")
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


def _found(request: TrainingRequest, plan: Plan, settings: Settings, *, use_store: bool) -> tuple[Trial, ...]:
    """The trials that have not run yet."""
    from meshwright.app.solving import trials_here

    trials = under_digests(trials_here(request, plan, most=MOST_TRIALS))
    if not use_store:
        return trials
    from meshwright.app.db.engine import open_engine
    from meshwright.app.db.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    try:
        ensure_ready(engine)
        return not_yet_run(trials, request, engine)
    finally:
        engine.dispose()


def _print(trials: tuple[Trial, ...], folder: Path | None) -> None:
    if not trials:
        tell("Every plan that was worth a trial has run.")
    for number, trial in enumerate(trials, start=1):
        predicted = trial.plan.predicted
        assert predicted is not None and predicted.step_time_s is not None, "a trial is a feasible training plan"
        tell(f"{number}. {summary_of(trial.plan)}: {predicted.step_time_s:.3g} s a step")
        tell(
            f"   {predicted.peak_memory_bytes / GIB:.1f} GiB, {trial.chance_out_of_memory:.1%} chance to run out of memory; "
            f"regret of the best so far {trial.expected_regret:.1%}"
        )
        for sentence in trial.tells:
            tell(f"   {sentence}")
        if folder is not None:
            tell(f"   {folder / f'trial-{number}'}")
    sys.stdout.flush()
