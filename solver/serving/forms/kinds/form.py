"""Several kinds of workers, as a form of a serving plan."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Kinds
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.kinds.given import predict
from meshwright.solver.serving.forms.kinds.planning import search
from meshwright.solver.serving.forms.kinds.rules import refuse, space
from meshwright.solver.serving.forms.kinds.simulating import simulate

FORM = Form("kinds", Kinds, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
