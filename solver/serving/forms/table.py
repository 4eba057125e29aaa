"""Every form of a serving plan."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args

from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.problem.choice import SERVING
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.restrictions import restrictions_text
from meshwright.solver.serving.forms.form import Form

FORMS: tuple[Form[Any], ...] = tuple(
    import_module(f"{__package__}.{layout.__name__.lower()}.form").FORM for layout in get_args(ServingLayout)
)
"""Forms in the order in which they are searched, each in the folder that is named like its layout."""


def space_of(request: ServingRequest) -> str:
    """Return the words of a certificate on the plans that a request's forms add, and the values that it restricts plans to;
    mostly empty."""
    return "".join(form.space(request) for form in FORMS) + restrictions_text(request.search, SERVING)
