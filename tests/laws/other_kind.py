"""A search choice that no plan of a request's kind has is refused by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.base.records import to_document
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choice import SERVING, TRAINING
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import LEDGER, Search
from tests.laws.law import Law
from tests.support.opened_choices import opened
from tests.support.requests_given import resolved, serving, training

_OF_KIND = {"training": (training, TRAINING), "serving": (serving, SERVING)}
_STRANGE = [
    (kind, name)
    for kind, (_, forms) in _OF_KIND.items()
    for name, entry in LEDGER.items()
    # A name of what a machine has, as that of an ILP solver, has no other value.
    if not entry.choice.forms & forms and opened(name, group_names=("nodes",)) != entry.default
]

_A_CHANCE = 0.2
"""Of running out of memory: other numbers are chances of nothing."""


def is_refused(strange: list[tuple[str, str]], beside: int) -> None:
    kind = strange[0][0]
    names = sorted({name for each, name in strange if each == kind})
    given, _ = _OF_KIND[kind]
    values = {name: _A_CHANCE if name.endswith("risk") else opened(name, group_names=("nodes",)) for name in names}
    asked: PlanRequest = resolved(given())
    own, opened_ones = to_document(Search, asked.search), to_document(Search, replace(asked.search, **values))
    search = own | {name: opened_ones[name] for name in names} | {"seed": beside}
    with pytest.raises(DocumentError) as refused:
        resolved(given(search=search))
    assert all(name in str(refused.value) for name in names), refused.value
    with pytest.raises(WorkloadError):
        solve(replace(asked, search=replace(asked.search, **values)), stop=never_stop, progress=ignore_progress)


LAW = Law(
    sentence="A field of another kind of request is refused by its name.",
    drawn={"strange": st.lists(st.sampled_from(_STRANGE), min_size=1, max_size=3), "beside": st.integers(0, 9)},
    check=is_refused,
    few=len(_STRANGE),
    many=1000,
    most=4000,
    draw_s=0.003,
)
