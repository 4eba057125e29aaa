"""The page that lays two plans beside each other: what each is, and the bytes that move from one to the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.figures import axes, counted, gib, percent, seconds, speed_in_words
from meshwright.app.base.plan_words import certificate_in_words, devices_left
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.pictures.drawings import exchange_drawing, stages_of
from meshwright.app.web.pages.layout import render
from meshwright.app.web.pages.routes import PageReader, PageRoute, plan_choices, stored_plan
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.stage import Stage
from meshwright.solver.switching import Switch, switch_bytes

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST_STAGES = 32
"""Rows of the table of stages."""


@router.get("/diff")
def compare(
    request: Request,
    caller: PageReader,
    old: Annotated[str, Query(max_length=100)],
    new: Annotated[str, Query(max_length=100)] = "",
    lost: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Lay two plans beside each other; without the second, ask which it is."""
    before = stored_plan(request, caller, old)
    offered = plan_choices(request, caller, before.plan.model)
    known = {digest for digest, _ in offered}
    unlisted = [(digest, digest) for digest in (old, new) if digest and digest not in known]
    facts, moves, problem = None, None, None
    if new:
        after = stored_plan(request, caller, new)
        facts = _beside(before, after)
        try:
            ranks = [word for word in lost.replace(",", " ").split() if word]
            moves = _moves(switch_bytes(before, after, device_of_old_rank=devices_left(ranks, before, after)), after)
        except InvalidInputError as error:
            problem = str(error)
    return render(
        request,
        "diff.html",
        status=422 if problem and lost else 200,
        old=old,
        new=new,
        lost=lost,
        from_plans=[*unlisted, *offered],
        to_plans=[*(each for each in offered if each[0] != old), *unlisted],
        facts=facts,
        moves=moves,
        problem=problem,
    )


def _beside(old: AnsweredRequest, new: AnsweredRequest) -> list[tuple[Words, ...]]:
    rows: list[tuple[Words, ...]] = [
        (name, before, after, "" if before == after else "changed")
        for (name, before), (_, after) in zip(_facts(old), _facts(new), strict=True)
    ]
    links = (Hyperlink(f"/plans/{each.plan.digest}", "see it") for each in (old, new))
    return [*rows, ("plan", *links, "")]


def _facts(answered: AnsweredRequest) -> Iterable[tuple[str, str]]:
    plan = answered.plan
    stages = stages_of(plan)
    yield "model", plan.model
    yield "devices", counted(plan.devices, "device")
    yield "figures", "no plan" if plan.predicted is None else speed_in_words(plan.predicted)
    yield "certificate", certificate_in_words(plan, answered.request)
    yield "degrees", _joined(axes(stage.axes) for stage in stages)
    yield "stages", f"{len(stages)}"
    yield "recompute", _joined(stage.recompute.value + stage.of_layers for stage in stages)
    yield "ZeRO", _joined(str(stage.zero_stage) for stage in stages)
    yield "fullest device", "" if plan.predicted is None else gib(plan.predicted.peak_memory_bytes)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


@dataclass(frozen=True)
class Moves:
    """What moves from one plan to another: in words, what is lost, over all devices, drawn, and a device of each stage."""

    said: str
    gone: str
    kinds: list[tuple[str, ...]]
    drawing: str
    stages: list[tuple[str, ...]]
    left: int
    """Stages that are not shown."""


def _moves(switch: Switch, new: AnsweredRequest) -> Moves | None:
    if switch.moved_bytes == 0:
        return None
    said = (
        f"{gib(switch.moved_bytes)} of weights and optimizer state move, {percent(switch.kept_share)} stay in place; at least "
        f"{seconds(switch.time_s)} (network {seconds(switch.network_s)}, fabric {seconds(switch.fabric_s)})."
    )
    gone = f"{gib(switch.storage_bytes)} are on no device that is left: they come from a checkpoint."
    kinds = [
        (name, *(gib(float(each.sum())) for each in (moved.kept, moved.from_node, moved.from_network, moved.from_storage)))
        for name, moved in (("weights", switch.weights), ("optimizer state", switch.optimizer))
    ]
    stages = stages_of(new.plan)
    rows = [_of_stage(number, stage, switch) for number, stage in enumerate(stages[:MOST_STAGES])]
    drawing = exchange_drawing(switch, new.request.cluster)
    return Moves(said, gone if switch.storage_bytes > 0 else "", kinds, drawing, rows, len(stages) - len(rows))


def _of_stage(number: int, stage: Stage, switch: Switch) -> tuple[str, ...]:
    """Means of the devices of a stage of the new plan."""
    ranks = np.concatenate([np.arange(each.first, each.first + each.count) for each in stage.devices])
    total = switch.total
    return (str(number), *(gib(float(values[ranks].mean())) for values in (total.kept, total.received, total.sent)))
