"""The plan store as commands use it. Where an answer is worth more than the store, one that can't be used is a warning."""

from __future__ import annotations

import json

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import say
from meshwright.app.requests.files import read_document
from meshwright.app.requests.plan_documents import read_plan
from meshwright.app.store.plans import PlanStore
from meshwright.costmodels.errors import InvalidInputError


def open_store(settings: Settings) -> PlanStore | None:
    """The plan store of the settings; None, with a warning, when it can't be used."""
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    try:
        engine = open_engine(settings.database_url)
        ensure_ready(engine)
    except StoreError as error:
        say(f"warning: planning without the plan store: {error}")
        return None
    return PlanStore(engine)


def is_readable(text: str) -> bool:
    """Return True if this version reads the stored plan; one of another form is left alone and solved anew."""
    try:
        read_plan(json.loads(text))
    except InvalidInputError as error:
        say(f"warning: the stored plan is not of this version's form, solving anew: {error}")
        return False
    return True


def given_plan_document(plan: str, settings: Settings) -> object:
    """The document in a plan file, on stdin, or stored under a digest or the start of one."""
    if not plan.startswith("sha256:"):
        return read_document(plan, what="plan")
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    try:
        ensure_ready(engine)
        return json.loads(PlanStore(engine).get_by_short_digest(plan))
    finally:
        engine.dispose()
