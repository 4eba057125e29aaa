"""Every form of a training plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from meshwright.solver.answer.layouts import ByGroup, Stagewise, TrainingLayout, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.by_group.prediction import predict_by_group
from meshwright.solver.training.forms.by_group.search import best_by_group, refuse_by_group
from meshwright.solver.training.forms.stagewise.prediction import predict_stagewise
from meshwright.solver.training.forms.stagewise.search import best_stagewise, refuse_stagewise
from meshwright.solver.training.forms.uniform.prediction import predict_uniform
from meshwright.solver.training.forms.uniform.search import best_uniform, refuse_uniform

OwnLayout = TypeVar("OwnLayout", bound=TrainingLayout)


class FormSearch(Protocol):
    """The search of a form, which begins with the best plan of the forms before it: None for the first."""

    def __call__(self, request: TrainingRequest, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
        """Return the better of the given plan and the best of this form, with a certificate of both spaces."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingForm(Generic[OwnLayout]):
    """A form of a training plan, and what is done with it.

    layout    the type of its part of a plan
    refuse    raises for a request that asks for the form beside what it is not planned for
    search    finds its best plan
    predict   the plan of a given layout, with every figure predicted anew
    """

    form: Form
    layout: type[OwnLayout]
    refuse: Callable[[TrainingRequest], None]
    search: FormSearch
    predict: Callable[[TrainingRequest, OwnLayout], Plan]


FORMS: tuple[TrainingForm[Any], ...] = (
    TrainingForm(Form.UNIFORM, Uniform, refuse_uniform, best_uniform, predict_uniform),
    TrainingForm(Form.BY_GROUP, ByGroup, refuse_by_group, best_by_group, predict_by_group),
    TrainingForm(Form.STAGEWISE, Stagewise, refuse_stagewise, best_stagewise, predict_stagewise),
)
"""Forms in the order in which they are searched."""
