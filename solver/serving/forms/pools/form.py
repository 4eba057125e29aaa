"""Prefill and decode pools, as a form of a serving plan."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Pools
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.pools.given import predict
from meshwright.solver.serving.forms.pools.planning import search
from meshwright.solver.serving.forms.pools.rules import refuse, space
from meshwright.solver.serving.forms.pools.simulating import simulate

FORM = Form("pools", Pools, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
