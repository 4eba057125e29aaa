"""The check of a folder: its requests planned, compared with its lock, and on request locked anew."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.app.base.output_files import check_output, write_output
from meshwright.app.base.quoting import ALLOWED_CHARACTERS, readable
from meshwright.app.regression.comparison import Planned, compare
from meshwright.app.regression.lock import LOCK_NAME, Lock, LockError, Policy, accept_command, lock_text, read_lock, read_policy
from meshwright.app.regression.locked_plan import locked_plan
from meshwright.app.regression.planning import Planner
from meshwright.app.regression.report import CheckReport, Finding, FindingRule, PlanCheck, Severity, Verdict, report_of
from meshwright.app.requests.confined_files import ConfinedFiles, repository_of, require_within
from meshwright.app.requests.digests import KeyedRequest, keyed_request
from meshwright.app.requests.files import read_request
from meshwright.app.requests.limits import Entry
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError
from meshwright.solver.answer.plan import Plan

# The requests of a folder: every ``*.plan.yaml`` under it, by its path from there.

REQUEST_PATTERN = "*.plan.yaml"


@dataclass(frozen=True, slots=True)
class FoundRequest:
    """A request file: its name in the lock, and the request or why it can't be used."""

    name: str
    request: KeyedRequest | InvalidInputError


def find_requests(folder: Path, locked: Collection[str] = ()) -> tuple[FoundRequest, ...]:
    """The requests under a folder, hidden folders left out, by name; raises InvalidInputError for what is no folder.

    Names with hidden characters are refused, of files and in them, but not in those that are locked already.
    """
    if not folder.is_dir():
        raise InvalidInputError("there is no such folder", given=str(folder), allowed="a folder with *.plan.yaml files")
    names = [path.relative_to(folder) for path in folder.rglob(REQUEST_PATTERN) if path.is_file()]
    visible = sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))
    return tuple(_found(folder, name, Entry.STORED if name in locked else Entry.NEW) for name in visible)


def _found(folder: Path, name: str, entry: Entry) -> FoundRequest:
    if entry is Entry.NEW and readable(name) != name:
        refused = InvalidInputError(
            "the file's name has characters that can't be used",
            given=name,
            allowed=ALLOWED_CHARACTERS,
            remedy="give it another name",
        )
        return FoundRequest(readable(name), refused)
    path, root = folder / name, repository_of(folder)
    files = ConfinedFiles(path.parent, root)
    try:
        require_within(path, root, given=name)
        return FoundRequest(name, keyed_request(read_request(str(path), entry=entry, files=files)))
    except InvalidInputError as error:
        text = path.read_text(encoding="utf-8", errors="replace") if files.named else ""
        return FoundRequest(name, files.unquoted(error, text))


Answered = Planned | MeshwrightError


@dataclass(frozen=True, slots=True)
class Checked:
    """A report, and the lock that holds the plans of now; None when some request has no plan."""

    report: CheckReport
    lock: Lock | None


def check_folder(folder: Path, planner: Planner) -> CheckReport:
    """Compare every request under a folder with the folder's lock; raises InvalidInputError on a bad folder or policy.

    A bad request or lock is part of the report, so that every output format shows it.
    """
    try:
        lock = read_lock(folder / LOCK_NAME)
    except LockError as error:
        broken = PlanCheck(LOCK_NAME, Verdict.INVALID, (_error_finding(error),))
        return _report(folder, read_policy({}, folder), (broken,))
    return _check(folder, planner, lock).report


def update_folder(folder: Path, planner: Planner) -> CheckReport:
    """Compare, then write the plans of now to the lock, unless a request has none; raises as ``check_folder``.

    The policy in the lock stays. Raises LockError for a lock that can't be read: what stands in it would be lost.
    """
    path = folder / LOCK_NAME
    if folder.is_dir():
        check_output(path, what="lock")
    checked = _check(folder, planner, read_lock(path) if path.exists() else Lock())
    if checked.lock is None:
        return checked.report
    write_output(path, lock_text(checked.lock), what="lock")
    return replace(checked.report, updated=True, exit_code=0)


def _check(folder: Path, planner: Planner, lock: Lock) -> Checked:
    policy = read_policy(lock.policy, folder)
    requests = find_requests(folder, lock.plans)
    if not requests and not lock.plans:
        raise InvalidInputError("there is no request in this folder", given=str(folder), allowed="*.plan.yaml files")
    outcomes = _outcomes(requests, planner)
    plans = tuple(
        _check_one(name, lock, outcomes.get(name), policy, accept=accept_command(folder))
        for name in sorted({*lock.plans, *outcomes})
    )
    entries = {name: outcome.entry for name, outcome in outcomes.items() if isinstance(outcome, Planned)}
    new_lock = replace(lock, plans=entries) if len(entries) == len(outcomes) else None
    return Checked(_report(folder, policy, plans), new_lock)


def _outcomes(requests: tuple[FoundRequest, ...], planner: Planner) -> dict[str, Answered]:
    answers = planner.plan_all(found.request for found in requests if isinstance(found.request, KeyedRequest))
    return {found.name: _outcome(found.request, answers) for found in requests}


def _outcome(request: KeyedRequest | InvalidInputError, answers: Mapping[str, Plan | MeshwrightError]) -> Answered:
    if isinstance(request, InvalidInputError):
        return request
    plan = answers[request.digest]
    if isinstance(plan, MeshwrightError):
        return plan
    return Planned(plan, locked_plan(plan, request.digest, json.loads(request.text)))


def _check_one(name: str, lock: Lock, outcome: Answered | None, policy: Policy, *, accept: str) -> PlanCheck:
    was = lock.plans.get(name)
    if outcome is None:
        assert was is not None
        fix = f"bring {name} back; or, if it is meant to go: {accept}"
        finding = Finding(FindingRule.MISSING, Severity.ERROR, "the locked request is gone", f"there is no file {name}", fix)
        return PlanCheck(name, Verdict.MISSING, (finding,), was=was.figures)
    if isinstance(outcome, MeshwrightError):
        verdict = Verdict.INVALID if isinstance(outcome, InvalidInputError) else Verdict.FAILED
        return PlanCheck(name, verdict, (_error_finding(outcome),), was=was.figures if was else None)
    if was is None:
        fix = f"lock its plan: {accept}"
        finding = Finding(FindingRule.NEW, Severity.ERROR, "the request is not in the lock", "the lock was made before it", fix)
        return PlanCheck(name, Verdict.NEW, (finding,), digest=outcome.entry.digest, now=outcome.entry.figures)
    return compare(name, was, outcome, policy, accept=accept)


def _error_finding(error: MeshwrightError) -> Finding:
    """The error in one line: a document's faults stand on lines of their own."""
    message = "; ".join(line.strip() for line in str(error).splitlines())
    if isinstance(error, InvalidInputError):
        remedy = error.remedy or ""
        return Finding(FindingRule.INVALID, Severity.ERROR, message.removesuffix(f"; what to do: {remedy}"), fix=remedy)
    return Finding(FindingRule.FAILURE, Severity.ERROR, message, fix="report it as a defect of Meshwright")


def _report(folder: Path, policy: Policy, plans: tuple[PlanCheck, ...]) -> CheckReport:
    return report_of(folder.as_posix(), plans, policy, accept=accept_command(folder))
