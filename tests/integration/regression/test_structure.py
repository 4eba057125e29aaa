"""The structure of a locked plan shows every choice: a plan that differs in one differs in its lock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.regression.lock import Lock, lock_text, read_lock
from meshwright.app.regression.locked_plan import WRITTEN_WHERE_SET, locked_plan, structure_of
from meshwright.app.regression.report import structure_changes
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.solver.answer.layouts import Stagewise
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PrefillPool, ReplicaPool, ReplicaShares
from meshwright.solver.answer.stage import OperatorSharding
from meshwright.solver.problem.choice import LockPlace as ShownBy
from meshwright.solver.problem.search import LEDGER
from tests.integration.regression.project import LOCK
from tests.integration.regression.structure import PLACED, kind_of, otherwise, planned
from tests.support.flat_plans import flat, with_fields
from tests.support.requests_given import resolved, training


@pytest.mark.slow_beyond(6)
@pytest.mark.parametrize("name", PLACED)
def test_every_choice_is_seen(name: str) -> None:
    plan = planned(kind_of(name))
    was, now = structure_of(plan), structure_of(otherwise(plan, name))
    shown = LEDGER[name].choice.lock.value
    assert getattr(was, shown) != getattr(now, shown)
    assert structure_changes(was, now)
    assert structure_changes(now, was)


def test_every_choice_of_a_form_is_shown_by_a_field() -> None:
    forms = {name: entry.choice.lock for name, entry in LEDGER.items() if entry.choice.place and name not in PLACED}
    structures = {
        ShownBy.PREFILL: structure_of(_pooled(planned("serving"))),
        ShownBy.GROUPS: structure_of(_by_group(planned("training"), 3)),
        ShownBy.STAGES: structure_of(_stagewise(planned("training"))),
    }
    for name, shown in forms.items():
        if shown is ShownBy.WORKER_KINDS:
            continue
        usual = structure_of(planned(kind_of(name)))
        assert getattr(structures[shown], shown.value) != getattr(usual, shown.value), name


def _pooled(plan: Plan) -> Plan:
    assert flat(plan).axes is not None
    return with_fields(plan, prefill=PrefillPool(1, flat(plan).axes, flat(plan).stages, 8, 4096, 0.5, 0.1))


def _by_group(plan: Plan, sequences: int, *, zero_stage: int = 1) -> Plan:
    assert flat(plan).axes and flat(plan).schedule and flat(plan).microbatch
    stages = tuple(replace(stage, zero_stage=zero_stage) for stage in flat(plan).stages)
    pool = ReplicaPool(
        "second",
        sequences,
        1.0,
        flat(plan).axes,
        stages,
        flat(plan).shardings,
        flat(plan).sequence_parallel,
        flat(plan).schedule,
        flat(plan).microbatch,
    )
    return with_fields(plan, shares=ReplicaShares(5, 1.0, 0.1, (pool,)))


def _stagewise(plan: Plan, strategy: str = "heads") -> Plan:
    own = (OperatorSharding("layer", "query", strategy),)
    stages = tuple(replace(stage, shardings=own, axes=replace(stage.axes, tp=stage.axes.tp * 2)) for stage in flat(plan).stages)
    return with_fields(plan, stages=stages)


def test_shares_and_layouts_of_all_groups_are_seen() -> None:
    plan = planned("training")
    first, more, sharded = _by_group(plan, 3), _by_group(plan, 4), _by_group(plan, 3, zero_stage=3)
    assert structure_changes(structure_of(first), structure_of(more))
    assert structure_changes(structure_of(first), structure_of(sharded))


def test_shardings_of_each_stage_are_seen() -> None:
    plan = planned("training")
    one, other = _stagewise(plan), _stagewise(plan, "ffn")
    assert isinstance(one.layout, Stagewise)
    assert structure_changes(structure_of(one), structure_of(other))


def test_a_difference_is_told_by_the_words_of_the_ledger() -> None:
    plan = planned("training")
    lines = structure_changes(structure_of(plan), structure_of(otherwise(otherwise(plan, "optimizers"), "idle_groups")))
    assert lines == ("optimizer usual -> muon", "idle devices usual -> first 1")


def test_what_is_usual_is_not_written_and_what_is_not_is_read_again(tmp_path: Path) -> None:
    request = resolved(training())
    for plan, written in ((planned("training"), False), (otherwise(planned("training"), "optimizers"), True)):
        entry = locked_plan(plan, keyed_request(request).digest, request_document(request))
        text = lock_text(Lock(plans={"a": entry}))
        structure = json.loads(text)["plans"]["a"]["structure"]
        assert (set(WRITTEN_WHERE_SET) & set(structure) == {"choices"}) is written
        (tmp_path / LOCK).write_text(text)
        read = read_lock(tmp_path / LOCK)
        assert lock_text(read) == text
        assert read.plans["a"].is_sealed
