"""The pictures of a stored plan, as questions that a process with limits answers: what is drawn may be large.

Each takes a document with the text of a plan as ``plan``, and returns what its page shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from meshwright.app.pictures.drawings import timeline_drawing
from meshwright.app.pictures.files import Picture, drawn
from meshwright.app.pictures.page import plan_view
from meshwright.app.pictures.step_timeline import has_step
from meshwright.app.requests.named_plans import request_of_name
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.solver.answer.layouts import OfWorkers
from meshwright.solver.answer.plan import AnsweredRequest


def article(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page of a plan shows, and what can be done with it. ``instead`` is the place that plans another by its
    name."""
    answered = read_plan_document(json.loads(asked["plan"]))
    return {
        "view": plan_view(answered, _follow(answered, asked.get("instead"))),
        "is_feasible": answered.plan.feasible,
        "has_load": isinstance(answered.plan.layout, OfWorkers),
        "has_step": has_step(answered),
    }


def picture(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of a plan that ``kind`` names."""
    return {"text": drawn(read_plan_document(json.loads(asked["plan"])), Picture(asked["kind"]))}


def part_of_step(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the drawing of a step from ``start`` on, ``width`` of it wide, both shares of the step."""
    answered = read_plan_document(json.loads(asked["plan"]))
    return {"svg": timeline_drawing(answered, (asked["start"], asked["width"])), "model": answered.plan.model}


def _follow(answered: AnsweredRequest, instead: str | None) -> Callable[[str], str | None]:
    """Where the page of a plan leads from the name of another: to the form that plans it, of names that a search can say."""
    predicted = answered.plan.predicted
    figures = None if predicted is None else (predicted.tokens_per_s, predicted.peak_memory_bytes)
    own = {each.summary for each in answered.plan.frontier if (each.tokens_per_s, each.peak_memory_bytes) == figures}

    def place(name: str) -> str | None:
        if instead is None or name in own or request_of_name(answered.request, name) is None:
            return None
        return f"{instead}?{urlencode({'name': name})}"

    return place
