"""Equal replicas that do both phases, as a form of a serving plan."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.replicas.given import predict
from meshwright.solver.serving.forms.replicas.planning import search
from meshwright.solver.serving.forms.replicas.rules import refuse, space
from meshwright.solver.serving.forms.replicas.simulating import simulate

FORM = Form("replicas", Replicas, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
