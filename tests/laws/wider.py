"""A wider space is never worse."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.app.base.solving import solve_here
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import Objective
from tests.laws.law import Law
from tests.support.requests_given import resolved
from tests.support.small_requests import SERVED, TRAINED, served, trained

TIE = 1e-9
GRID = 0.01
"""Rates of serving plans are searched on a grid of 1%."""

_TRAINING: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "pp": [1, 2],
    "microbatch": [1, 2, 4],
    "recompute": ["none", "selective", "full"],
    "zero_stages": [0, 1, 2, 3],
}
_SERVING: dict[str, list[Any]] = {"tp": [1, 2, 4], "pp": [1, 2], "modes": ["aggregated", "disaggregated", "switched"]}
SPACES = ("launchable", "free")


def _spaces(allowed: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, tuple[list[Any], list[Any]]]]:
    """Draw for each choice the values of a space and those of a wider one."""

    def of(values: list[Any]) -> st.SearchStrategy[tuple[list[Any], list[Any]]]:
        some = st.lists(st.sampled_from(values), min_size=1, unique=True)
        return st.tuples(some, some).map(lambda pair: (pair[0], [*pair[0], *(set(pair[1]) - set(pair[0]))]))

    return st.fixed_dictionaries({name: of(values) for name, values in allowed.items()})


def _solved(document: dict[str, Any]) -> Plan | None:
    try:
        return solve_here(resolved(document))
    except InvalidInputError:
        return None


def is_no_worse(drawn: tuple[dict[str, Any], dict[str, tuple[list[Any], list[Any]]]], free: bool) -> None:
    asked, spaces = drawn
    is_trained = "seq_len" in asked
    document = trained if is_trained else served
    narrow, wide = ({name: values[place] for name, values in spaces.items()} for place in (0, 1))
    if is_trained:
        narrow["space"] = SPACES[free and asked["space"] == "free"]
        wide["space"] = SPACES[free]
    less, most = _solved(document(asked, **narrow)), _solved(document(asked, **wide))
    if less is None or not less.feasible:
        return
    assert most is not None and most.feasible, "the wider space has no plan"
    assert less.certificate.objective is not None and most.certificate.objective is not None
    assert most.certificate.status is Status.OPTIMAL, most.certificate
    by_rate = not is_trained and asked["objective"] in (Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)
    assert most.certificate.objective <= less.certificate.objective * (1 + (GRID if by_rate else TIE))


LAW = Law(
    sentence="A wider space is never worse.",
    drawn={
        "drawn": st.tuples(TRAINED, _spaces(_TRAINING)) | st.tuples(SERVED, _spaces(_SERVING)),
        "free": st.booleans(),
    },
    check=is_no_worse,
    few=3,
    many=60,
    most=200,
    draw_s=0.68,
)
