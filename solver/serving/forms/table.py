"""Every form of a serving plan."""

from __future__ import annotations

from typing import Any

from meshwright.solver.problem.choice import SERVING
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import restrictions_text
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.kinds.form import FORM as KINDS
from meshwright.solver.serving.forms.pools.form import FORM as POOLS
from meshwright.solver.serving.forms.replicas import FORM as REPLICAS
from meshwright.solver.serving.forms.switched.form import FORM as SWITCHED

FORMS: tuple[Form[Any], ...] = (REPLICAS, POOLS, KINDS, SWITCHED)
"""Forms in the order in which they are searched, which is that of `ServingLayout`."""


def space_of(request: ServingRequest) -> str:
    """Return the words of a certificate on the plans that a request's forms add, and the values that it restricts plans to;
    mostly empty."""
    return "".join(form.space(request) for form in FORMS) + restrictions_text(request.search, SERVING)
