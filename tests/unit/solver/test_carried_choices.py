"""Declared choices in the records that carry them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from meshwright.solver.answer.layouts import Pipelines
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.carried_choices import OF_MESHES, USUAL_MESH, MeshChoices, StageChoices
from meshwright.solver.problem.choice import Unnamed
from meshwright.solver.problem.choices import Launcher, Space
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.training.space.meshes import Mesh

CARRIED = [each.name for record in (MeshChoices, StageChoices) for each in fields(record)]


@pytest.mark.parametrize("name", OF_MESHES)
def test_a_choice_of_meshes_is_the_one_of_the_ledger(name: str) -> None:
    choice = OF_MESHES[name]
    assert LEDGER[name].choice is choice
    assert getattr(USUAL_MESH, name) is choice.usual
    assert {*choice.words} == {*choice.mechanisms} == {*choice.values} - {choice.usual}


def test_every_carried_choice_can_be_asked_for_and_stands_in_plans() -> None:
    assert {*CARRIED} <= {*LEDGER}
    assert {each.name for each in fields(MeshChoices)} == {*OF_MESHES}
    assert {*OF_MESHES} <= {each.name for each in fields(Pipelines)} & {each.name for each in fields(PlanRecord)}
    assert {each.name for each in fields(StageChoices)} <= {each.name for each in fields(Stage)}


def unusual() -> Iterator[tuple[MeshChoices, str, Any]]:
    for name, choice in OF_MESHES.items():
        for value in [*choice.values][1:]:
            yield replace(USUAL_MESH, **{name: value}), name, value


def test_other_values_are_named_come_later_and_are_searched_where_they_are_asked_for() -> None:
    assert USUAL_MESH.words == USUAL_MESH.mechanisms == []
    for choices, name, value in unusual():
        assert len(choices.words) == len(choices.mechanisms) == 1
        assert choices.sort_key > USUAL_MESH.sort_key
        asked = replace(Search(), **{name: (value,)})
        mesh, alone = Mesh(dp=2, tp=1, pp=2, cp=2), Mesh(dp=1, tp=1, pp=2, cp=2, ulysses=2)
        assert choices in MeshChoices.allowed(asked, mesh)
        assert choices not in MeshChoices.allowed(replace(Search(), **{name: (OF_MESHES[name].usual,)}), mesh)
        assert (choices in MeshChoices.allowed(Search(), mesh)) == (OF_MESHES[name].unnamed is Unnamed.ANY)
        assert list(MeshChoices.allowed(asked, alone)) == [USUAL_MESH] == [MeshChoices.of(choices, alone)]
        assert MeshChoices.of(choices, mesh) == choices


@pytest.mark.parametrize("launcher", Launcher)
def test_launchers_have_usual_values(launcher: Launcher) -> None:
    assert USUAL_MESH.are_launched_by(launcher, Mesh(dp=2, tp=1, pp=2, cp=1))


@pytest.mark.parametrize(("number", "pp"), [(3, 1), (3, 2), (None, 2)])
def test_words_of_recomputed_layers_are_read_back(number: int | None, pp: int) -> None:
    choices = StageChoices(recompute_layers=number)
    words = choices.recompute_words(["none", "full"], pp=pp)
    assert StageChoices.of_words(words) == (None if number is None else choices)
    allowed = choices.restricted(Search()).recompute_layers
    assert allowed == (() if number is None else (number,))


def test_a_number_that_borders_decide_restricts_nothing() -> None:
    some = StageChoices().with_layers()
    assert some.lacks_layers and some.recomputes_some
    assert StageChoices.of_words(some.recompute_words([], pp=2)) == some
    asked = Search(recompute_layers=(2, 3))
    assert some.restricted(asked) is asked


def test_stages_recompute_some_layers_where_the_launcher_has_a_flag() -> None:
    assert StageChoices.are_open(Search())
    assert not StageChoices.are_open(Search(launcher=Launcher.TORCHTITAN))
    assert StageChoices.are_open(Search(launcher=Launcher.TORCHTITAN, space=Space.FREE))
