"""The explanation of a launch command as a document, ``meshwright.explanation/1``."""

from __future__ import annotations

from typing import Any

from meshwright.app.base.records import to_document
from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.service.explaining.explanation import Better, Explanation
from meshwright.app.service.explaining.slow import MeasuredAnswer
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason

EXPLANATION_SCHEMA = "meshwright.explanation/1"


def explanation_document(found: Explanation) -> dict[str, Any]:
    """Return the document of an explanation; its plans are plan documents without digests."""
    return {
        "schema": EXPLANATION_SCHEMA,
        "verdict": found.verdict.value,
        "launcher": found.launcher.value,
        "command": found.command,
        "flags": [
            {"flag": flag.name, "value": flag.value, "standing": flag.standing.value, "why": flag.why} for flag in found.given
        ],
        "notes": list(found.notes),
        "problems": list(found.problems),
        "reason": None if found.reason is None else to_document(Reason, found.reason),
        "plan": _plan(found.plan),
        "most": _plan(found.most),
        "searched": found.searched,
        "better": None if found.better is None else _better(found.better),
        "request": request_document(found.request),
        "measured": None if found.measured is None else _measured(found.measured),
    }


def _measured(answer: MeasuredAnswer) -> dict[str, Any]:
    return {
        "as_predicted": answer.is_as_predicted,
        "compared": [
            {
                "given": each.text,
                "metric": each.metric.value,
                "measured": each.measured,
                "predicted": each.predicted,
                "low": each.low,
                "high": each.high,
            }
            for each in answer.compared
        ],
        "causes": [
            {
                "name": each.name,
                "what": each.what,
                "factor": each.factor,
                "figure": each.figure,
                "share": each.share,
                "explains": each.explains,
                "check": each.check,
            }
            for each in answer.causes
        ],
    }


def _better(better: Better) -> dict[str, Any]:
    return {
        "plan": _plan(better.plan),
        "command": better.command,
        "gain": better.gain,
        "differences": [{"flag": each.flag, "given": each.given, "better": each.better} for each in better.differences],
    }


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    return None if plan is None else plan_document(plan)
