"""The ledger of search choices: what says too little, or what can't be, stops the import."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated

import pytest

from meshwright.solver.answer.arrangement import _usual_at
from meshwright.solver.problem.choice import SERVING, TRAINING, Choice, LockPlace, Part, Place, Published, Said, ledger_of
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.declared.constraints import WHOLE, FixedSharding
from meshwright.solver.problem.search import LEDGER, Search, restrictions_text
from meshwright.solver.serving.forms.table import space_of
from meshwright.solver.training.report.plan_report import space_text
from tests.support.opened_choices import opened
from tests.unit.solver.serving.requests import serving_request
from tests.unit.solver.training.instances import random_request


def test_every_field_of_a_search_is_in_the_ledger() -> None:
    assert list(LEDGER) == [each.name for each in fields(Search)]
    words = [entry.choice.word for entry in LEDGER.values()]
    assert len(set(words)) == len(words)


def test_a_choice_leaves_nothing_unsaid() -> None:
    assert all(each.default is MISSING and each.default_factory is MISSING for each in fields(Choice))


def test_a_field_without_a_choice_stops_the_import() -> None:
    @dataclass
    class Silent:
        dp: Annotated[int, "data parallelism"] = 1

    with pytest.raises(TypeError, match=r"Silent\.dp says what it is 0 times"):
        ledger_of(Silent)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("word", ""),
        ("forms", frozenset()),
        ("place", None),
        ("lock", LockPlace.NOT_OF_A_PLAN),
        ("said", Said.NOT_OF_THE_SPACE),
    ],
)
def test_a_choice_that_contradicts_itself_stops_the_import(field: str, value: object) -> None:
    choice = replace(LEDGER["dp"].choice, **{field: value})  # type: ignore[arg-type]

    class Odd:
        pass

    Odd.__annotations__ = {"dp": Annotated[tuple[int, ...], choice]}
    Odd.dp = ()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="the choice dp can't be used"):
        ledger_of(dataclass(Odd))


def test_a_choice_of_one_value_is_neither_listed_nor_limited_to_a_few() -> None:
    for changed in ({"said": Said.LISTED}, {"published": (1,)}):
        choice = replace(LEDGER["worker_kinds"].choice, **changed)  # type: ignore[arg-type]

        class Odd:
            pass

        Odd.__annotations__ = {"kinds": Annotated[int, choice]}
        Odd.kinds = 1  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="the choice kinds can't be used"):
            ledger_of(dataclass(Odd))
    assert LEDGER["dp"].choice.published is Published.AS_ASKED


def test_a_place_that_no_plan_has_stops_the_import() -> None:
    with pytest.raises(TypeError, match=r"no plan has 'offload\.weight' in its stages: Offload has no 'weight'"):
        _usual_at(Place(Part.STAGES, "offload.weight"))


LISTED = {
    forms: [name for name, entry in LEDGER.items() if entry.choice.said is Said.LISTED and entry.choice.forms & forms]
    for forms in (TRAINING, SERVING)
}


@pytest.mark.parametrize("name", LISTED[TRAINING])
def test_a_training_certificate_says_every_restriction(name: str) -> None:
    request = random_request(1)
    value = opened(name, group_names=["pool"])[:1]
    said = space_text(replace(request, search=replace(Search(space=Space.FREE), **{name: value})))
    assert f"; restricted to {LEDGER[name].choice.word} {getattr(value[0], 'value', value[0])}" in said


def test_values_of_a_restriction_stand_in_their_order() -> None:
    both = (FixedSharding("*", WHOLE), FixedSharding("mlp", WHOLE))
    search = Search(pp=(16, 2, 4), recompute=(Recompute.NONE, Recompute.FULL), constraints=both)
    said = restrictions_text(search, TRAINING)
    assert said.startswith("; restricted to pp 2 or 4 or 16, recompute full or none, constraints ")
    assert " and " in said.partition("constraints")[2]


@pytest.mark.parametrize("name", LISTED[SERVING])
def test_a_serving_certificate_says_every_restriction_and_no_other(name: str) -> None:
    request = serving_request(search=Search())
    restricted = replace(request, search=Search(**{name: (1,)}))
    assert "restricted" not in space_of(request)
    assert space_of(restricted) == f"{space_of(request)}; restricted to {LEDGER[name].choice.word} 1"
