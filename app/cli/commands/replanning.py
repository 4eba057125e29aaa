"""``replan``: plan again, on the service's database, what a change of the fleet made stale."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, say, tell
from meshwright.costmodels.units import GIB

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from meshwright.app.store.replans import ReplanItem, ReplanRepository

LOOK_EVERY_S = 0.5
ITEMS_A_PAGE = 500


class Act(Enum):
    """The act of the command."""

    START = "start a batch and wait for it"
    PREVIEW = "say what a batch would do"


@dataclass(frozen=True, slots=True)
class ReplanCommand:
    """Options of ``replan``: what the plans are about; None does not narrow it."""

    cluster: str | None
    model: str | None
    calibration: str | None
    act: Act
    output: Output


def run_replan(command: ReplanCommand, settings: Settings) -> int:
    """Preview or run a batch; exit code 1 when a plan became worse, impossible or could not be made."""
    from meshwright.app.service.engine import QueueClient, migrate_queue
    from meshwright.app.service.replan_schemas import replan_document, replan_item
    from meshwright.app.service.replans import ReplanService, ReplanWish
    from meshwright.app.service.webhook import webhook_settings
    from meshwright.app.store.engine import is_sqlite, open_engine
    from meshwright.app.store.migrate import ensure_ready
    from meshwright.app.store.principal import LOCAL
    from meshwright.app.store.questions import QuestionFilter
    from meshwright.app.store.replans import RUNNING, Outcome, ReplanRepository

    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    if is_sqlite(engine):
        migrate_queue(settings.database_url)
    version = _version(command, engine)
    service = ReplanService(engine, QueueClient(engine), webhook_settings(settings))
    about = QuestionFilter(command.cluster, command.model, calibration=command.calibration)
    if command.act is Act.PREVIEW:
        preview = asdict(service.preview(LOCAL, about))
        if command.output is Output.JSON:
            print_json(preview)
        else:
            tell("{questions} stale: {plans} distinct plans, {stored} of them stored, {unusable} unusable".format(**preview))
        return EXIT_GOOD
    batch = service.start_now(LOCAL, ReplanWish(about, cause="asked for on the command line", version=version))
    batches = ReplanRepository(engine, LOCAL.tenant)
    waiting = -1
    while batch.status == RUNNING:
        time.sleep(LOOK_EVERY_S)
        batch = service.get(LOCAL, batch.id)
        left = batches.totals(batch.id).counts.get(Outcome.WAITING, 0)
        if left not in (waiting, 0):
            say(f"{left} plans wait for a worker")
        waiting = left
    totals = batches.totals(batch.id)
    counts = totals.counts
    items = [replan_item(item) for item in _all_items(batches, batch.id)]
    if command.output is Output.JSON:
        whole = replan_document(batch, totals).model_dump(mode="json")
        print_json({"batch": whole, "items": [item.model_dump(mode="json") for item in items]})
    else:
        tell(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing was stale")
        for item in items:
            tell(f"{item.outcome:10} {item.model or '-'}: {item.reason}{_switch(item.switch_bytes)}")
    bad = {Outcome.WORSE, Outcome.INFEASIBLE, Outcome.FAILED, Outcome.CANCELLED}
    return EXIT_NO if bad & counts.keys() else EXIT_GOOD


def _all_items(batches: ReplanRepository, replan_id: str) -> Iterator[ReplanItem]:
    """Every item of a batch, read a page at a time."""
    after = None
    while page := batches.items(replan_id, None, after=after, limit=ITEMS_A_PAGE):
        yield from page
        after = page[-1].id


def _switch(moved_bytes: int | None) -> str:
    """Return the part of a line that speaks of the bytes that move."""
    return "" if moved_bytes is None else f"; to switch, {moved_bytes / GIB:.1f} GiB move"


def _version(command: ReplanCommand, engine: Engine) -> int | None:
    """The newest version of the one thing that the plans are about; None for several or for everything.

    Raises NoSuchError or CalibrationNotFoundError for what is not there.
    """
    from meshwright.app.service.replans import find_registered
    from meshwright.app.store.calibrations import CalibrationStore
    from meshwright.app.store.fleet import RegisteredKind, RegisteredRepository
    from meshwright.app.store.principal import LOCAL

    versions = []
    for kind, name in ((RegisteredKind.CLUSTER, command.cluster), (RegisteredKind.MODEL, command.model)):
        if name is not None:
            find = RegisteredRepository(engine, LOCAL.tenant, kind).find
            versions.append(find_registered(find, kind, name, None).version)
    if command.calibration is not None:
        versions.append(CalibrationStore(engine, LOCAL.tenant).resolve(command.calibration).version)
    return versions[0] if len(versions) == 1 else None
