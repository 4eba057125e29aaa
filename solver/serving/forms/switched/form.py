"""Workers that switch layouts, as a form of a serving plan."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Switched
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.switched.given import predict
from meshwright.solver.serving.forms.switched.planning import search
from meshwright.solver.serving.forms.switched.rules import refuse, space
from meshwright.solver.serving.forms.switched.simulating import simulate

FORM = Form("switched", Switched, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
