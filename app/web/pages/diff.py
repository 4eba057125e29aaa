"""The page that lays two plans beside each other: what each is, and the bytes that move from one to the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.figures import axes, counted, gib, percent, seconds, speed_in_words
from meshwright.app.base.plan_words import certificate_in_words, devices_left
from meshwright.app.base.quoting import html_text
from meshwright.app.pictures.drawings import stages_of
from meshwright.app.pictures.load_drawings import exchange_drawing
from meshwright.app.pictures.page import plain_table
from meshwright.app.web.pages.layout import alert, choice, field, link, page
from meshwright.app.web.pages.routes import COOKIE, PageReader, PageRoute, plan_choices, stored_plan
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
    body = f"<h1>Compare plans</h1>{_form(request, caller, before, old, new, lost)}"
    status = 200
    if new:
        after = stored_plan(request, caller, new)
        body += _beside(before, after)
        try:
            ranks = [word for word in lost.replace(",", " ").split() if word]
            body += _moves(switch_bytes(before, after, device_of_old_rank=devices_left(ranks, before, after)), after)
        except InvalidInputError as error:
            status = 422 if lost else 200
            body += f"<h2>What moves</h2>{alert(str(error))}"
    return page("Compare plans", body, status=status, signed_in=COOKIE in request.cookies)


def _form(request: Request, caller: PageReader, before: AnsweredRequest, old: str, new: str, lost: str) -> str:
    offered = plan_choices(request, caller, before.plan.model)
    known = {digest for digest, _ in offered}
    others = [each for each in offered if each[0] != old]
    more = [(digest, digest) for digest in (old, new) if digest and digest not in known]
    return (
        '<form method="get" action="/diff"><div class="fields">'
        f"{choice('old', 'From', [*more, *offered], old)}{choice('new', 'To', [*others, *more], new)}"
        f"{field('lost', 'Ranks whose devices are gone', value=lost, hint='8-15')}</div><p><button>Compare</button></p></form>"
    )


def _beside(old: AnsweredRequest, new: AnsweredRequest) -> str:
    rows = []
    for (name, before), (_, after) in zip(_facts(old), _facts(new), strict=True):
        changed = "" if before == after else "changed"
        rows.append((html_text(name), html_text(before), html_text(after), changed))
    links = tuple(link(f"/plans/{each.plan.digest}", "see it") for each in (old, new))
    return plain_table("Two plans", ("", "from", "to", ""), [*rows, ("plan", *links, "")])


def _facts(answered: AnsweredRequest) -> Iterable[tuple[str, str]]:
    plan = answered.plan
    stages = stages_of(plan)
    yield "model", plan.model
    yield "devices", counted(plan.devices, "device")
    yield "figures", "no plan" if plan.predicted is None else speed_in_words(plan.predicted)
    yield "certificate", certificate_in_words(plan, answered.request)
    yield "degrees", _joined(axes(stage.axes) for stage in stages)
    yield "stages", f"{len(stages)}"
    yield "recompute", _joined(stage.recompute.value for stage in stages)
    yield "ZeRO", _joined(str(stage.zero_stage) for stage in stages)
    yield "fullest device", "" if plan.predicted is None else gib(plan.predicted.peak_memory_bytes)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _moves(switch: Switch, new: AnsweredRequest) -> str:
    if switch.moved_bytes == 0:
        return "<h2>What moves</h2><p>Every device holds what it needs already: nothing moves.</p>"
    said = (
        f"{gib(switch.moved_bytes)} of weights and optimizer state move, {percent(switch.kept_share)} stay in place; at least "
        f"{seconds(switch.time_s)} (network {seconds(switch.network_s)}, fabric {seconds(switch.fabric_s)})."
    )
    gone = f"{gib(switch.storage_bytes)} are on no device that is left: they come from a checkpoint."
    kinds = [
        (name, *(gib(float(each.sum())) for each in (moved.kept, moved.from_node, moved.from_network, moved.from_storage)))
        for name, moved in (("weights", switch.weights), ("optimizer state", switch.optimizer))
    ]
    heads = ("all devices", "stays", "from its own node", "over the network", "from storage")
    stages = stages_of(new.plan)
    rows = [_of_stage(number, stage, switch) for number, stage in enumerate(stages[:MOST_STAGES])]
    left = len(stages) - len(rows)
    return (
        f"<h2>What moves</h2><p>{html_text(said)}</p>{alert(gone) if switch.storage_bytes > 0 else ''}"
        f"{plain_table('All devices', heads, kinds)}"
        f"{exchange_drawing(switch, new.request.cluster)}"
        f"{plain_table('A device of each stage', ('a device of stage', 'keeps', 'receives', 'sends'), rows)}"
        + (f"<p>{left} more stages.</p>" if left > 0 else "")
    )


def _of_stage(number: int, stage: Stage, switch: Switch) -> tuple[str, ...]:
    """Means of the devices of a stage of the new plan."""
    ranks = np.concatenate([np.arange(each.first, each.first + each.count) for each in stage.devices])
    total = switch.total
    return (str(number), *(gib(float(values[ranks].mean())) for values in (total.kept, total.received, total.sent)))
