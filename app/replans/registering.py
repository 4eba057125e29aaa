"""Registering models and clusters, and what a change of one does to the plans that rest on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Engine

from meshwright.app.db.engine import writing
from meshwright.app.errors import DocumentError, FieldError, NoSuchError
from meshwright.app.fleet.registered_repository import Registered, RegisteredKind, RegisteredRepository
from meshwright.app.fleet.registry import canonical_digest, registered_cluster, registered_model
from meshwright.app.questions.repository import QuestionFilter, QuestionRepository
from meshwright.app.replans.service import ReplanOptions, ReplanPolicy, ReplanService, ReplanWish
from meshwright.app.security.principal import Principal

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
ALLOWED_NAME = "letters, digits, '.', '_' and '-', at most 200, the first a letter or digit"


@dataclass(frozen=True, slots=True)
class Put:
    """The result of a PUT: the newest version, whether it is new, how many plans became stale, and the batch, if any."""

    version: Registered
    is_new: bool
    stale: int
    replan: str | None


@dataclass(frozen=True, slots=True)
class PutOptions:
    """Digest that the newest version must have, if any; and what to do with stale plans."""

    expected: str | None = None
    replan: ReplanOptions = field(default_factory=ReplanOptions)


class FleetService:
    """One caller's models and clusters. Its methods block; call them in threads."""

    def __init__(self, engine: Engine, replans: ReplanService):
        self._engine, self._replans = engine, replans

    def put(self, caller: Principal, kind: RegisteredKind, name: str, document: object, options: PutOptions) -> Put:
        """Register a document; a change marks the plans that rest on the old one as stale, in the same transaction.

        Raises DocumentError, VersionChangedError, StoreError.
        """
        check_name(name)
        self._replans.check_webhook(options.replan.webhook)
        text = registered_model(document, name) if kind is RegisteredKind.MODEL else registered_cluster(document)
        digest = canonical_digest(json.loads(text))
        about = QuestionFilter(model=name) if kind is RegisteredKind.MODEL else QuestionFilter(cluster=name)
        with writing(self._engine) as connection:
            put = RegisteredRepository(self._engine, caller.tenant, kind).put
            version, is_new = put(connection, name, digest=digest, document=text, expected=options.expected)
            stale, replan = 0, None
            if is_new and version.version > 1:
                reason = f"{kind} {name} is at version {version.version}"
                stale = QuestionRepository(self._engine, caller.tenant).mark_stale(connection, about, reason)
                if options.replan.policy is ReplanPolicy.START:
                    wish = ReplanWish(about, cause=reason, version=version.version, webhook=options.replan.webhook)
                    replan = self._replans.start(connection, caller, wish)
        return Put(version, is_new, stale, replan)

    def get(self, caller: Principal, kind: RegisteredKind, name: str, version: int | None) -> Registered:
        """A version, the newest unless told; raises NoSuchError."""
        return find_registered(RegisteredRepository(self._engine, caller.tenant, kind).find, kind, name, version)


def find_registered(
    find: Callable[[str, int | None], Registered | None], kind: RegisteredKind, name: str, version: int | None
) -> Registered:
    """Return the document that ``find`` finds; raises NoSuchError when there is none."""
    found = find(name, version) if NAME.fullmatch(name) else None
    if found is None:
        given = name if version is None else f"{name}, version {version}"
        raise NoSuchError(f"no such {kind} is registered", given=given)
    return found


def check_name(name: str) -> None:
    """Refuse a name that can't stand in an address; raises DocumentError."""
    if not NAME.fullmatch(name):
        raise DocumentError("this can't be registered", (FieldError("name", "can't be used", repr(name[:100]), ALLOWED_NAME),))
