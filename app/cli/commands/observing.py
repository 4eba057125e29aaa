"""``observe``: from options or a log to a stored run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.app.base.digits import is_digits
from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.figures import DURATION, RATE, SIZE, read_quantity
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, say
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.evidence.logs.matching import as_run, not_compared, require_match
from meshwright.app.evidence.logs.table import read_log
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.service.runs import Observation, Observed, RunService, observation
from meshwright.app.store.runs import MeasuredRun, RunOutcome, read_run, run_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import AnsweredRequest


@dataclass(frozen=True, slots=True)
class Given:
    """The figures of the options, as they were written."""

    step_time: str | None
    peak_memory: str | None
    tokens_per_s: str | None
    ttft_p95: str | None
    tpot_p95: str | None
    rate: str | None
    out_of_memory: bool

    def figures(self) -> dict[str, float | int]:
        """Return the figures in the units of a run; raises InvalidInputError."""
        read: dict[str, float | int] = {}
        for name, option, text, kind in (
            ("step_time_s", "--step-time", self.step_time, DURATION),
            ("tokens_per_s", "--tokens-per-s", self.tokens_per_s, RATE),
            ("ttft_p95_s", "--ttft-p95", self.ttft_p95, DURATION),
            ("tpot_p95_s", "--tpot-p95", self.tpot_p95, DURATION),
            ("requests_per_s", "--rate", self.rate, RATE),
        ):
            if text is not None:
                # A bare number of seconds is what logs print.
                read[name] = read_quantity(f"{text}s" if kind is DURATION and _is_bare(text) else text, kind, what=option)
        if self.peak_memory is not None:
            read["peak_memory_bytes"] = round(read_quantity(self.peak_memory, SIZE, what="--peak-memory"))
        return read


@dataclass(frozen=True, slots=True)
class ObserveCommand:
    """Options of ``observe``."""

    plan: str
    given: Given
    log: Path | None
    log_writer: LogWriter | None
    software: str
    label: str
    output: Output
    dry_run: bool
    as_run: bool


def run_observe(command: ObserveCommand, settings: Settings) -> int:
    """Store the run that options or a log tell of; with a dry run, only print it."""
    document = given_plan_document(command.plan, settings)
    answered = read_plan_document(document)
    digest = answered.plan.digest or keyed_request(answered.request).digest
    if command.log is None:
        run = _given_run(command, digest)
    else:
        run, answered = _logged_run(command, command.log, answered, digest)
    run = replace(run, software=command.software, label=command.label)
    observed = observation(read_run(run_document(run)), answered)
    if command.dry_run:
        _print(observed, command.output, "Nothing is stored: this was a dry run.")
        return EXIT_GOOD
    _print(observed, command.output, _told(_store(observed, settings)))
    return EXIT_GOOD


def _told(stored: Observed) -> str:
    if not stored.is_new:
        return "It was stored already: nothing has changed."
    if stored.kept is None:
        return "Stored."
    row = stored.kept.row
    return f"Stored; what runs here have told is {row.key}@{row.version}. Plan again to use it."


def _given_run(command: ObserveCommand, digest: str) -> MeasuredRun:
    if command.as_run:
        raise InvalidInputError("--as-run is of a log", given="no log", remedy="give --log, or leave --as-run out")
    outcome = RunOutcome.OUT_OF_MEMORY if command.given.out_of_memory else RunOutcome.COMPLETED
    return read_run({"plan": digest, "outcome": outcome.value, **command.given.figures()})


def _logged_run(
    command: ObserveCommand, path: Path, answered: AnsweredRequest, digest: str
) -> tuple[MeasuredRun, AnsweredRequest]:
    """The run that a log tells of, and the plan that it is of: with ``--as-run`` the same layout under the log's workload."""
    if command.given.figures() or command.given.out_of_memory:
        raise InvalidInputError("a log and figures can't both be given", given=str(path), remedy="leave one out")
    log = read_log(path, answered, writer=command.log_writer)
    missing = not_compared(log.stated, answered)
    if missing:
        say(f"note: the log does not tell these of its workload, so they were not compared: {', '.join(missing)}")
    if not command.as_run:
        require_match(log.stated, answered)
        return log.run(answered, plan=digest), answered
    ran = as_run(log.stated, answered)
    if ran is answered:
        return log.run(answered, plan=digest), answered
    say(f"note: the log is of another workload than the plan: its run is of the same layout under that, {ran.plan.digest[:19]}")
    return log.run(ran, plan=ran.plan.digest), ran


def _store(observed: Observation, settings: Settings) -> Observed:
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    try:
        ensure_ready(engine)
        return RunService(engine).add(observed)
    finally:
        engine.dispose()


def _print(observed: Observation, output: Output, end: str) -> None:
    run, row = observed.run, observed.row
    if output is Output.JSON:
        print_json(run_document(run))
        return
    figures = ", ".join(f"{name} {_shown(name, value)}" for name, value in run.measured().items())
    from meshwright.app.base.console import page_console, plain

    console = page_console()
    console.print(plain(f"{row.model} on {row.cluster} by {row.profile}: {figures or 'ran out of memory'}"))
    console.print(plain(end))


def _shown(name: str, value: float) -> str:
    return f"{value / GIB:.1f} GiB" if name.endswith("_bytes") else f"{value:.4g}"


def _is_bare(text: str) -> bool:
    return is_digits(text.strip().replace(".", "", 1))
