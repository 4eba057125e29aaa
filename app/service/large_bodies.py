"""Large request bodies, read in a process of their own, which takes their memory with it when it ends.

A body of 4 MB becomes a million objects. In the service's own process they hold Python's lock for a tenth of a second at a
time, and leave holes in its memory that others' small objects keep from being given back.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from meshwright.app.edge.bodies import json_object
from meshwright.app.service.planning import Resolved, fingerprint_of, resolved_alone, resolved_in_fleet
from meshwright.app.store.engine import open_engine


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A body, whose it is, and what reading it needs: the database's URL, and the longest time limit that it may set."""

    text: bytes
    tenant: str
    database_url: str = field(repr=False)
    max_time_limit_s: int


@dataclass(frozen=True, slots=True)
class SentKey:
    """The parts of a request that are kept while its plan is made, without the request."""

    digest: str
    text: str
    model: str


@dataclass(frozen=True, slots=True)
class ReadBody:
    """The request of a body, and the fingerprint of its document."""

    resolved: Resolved
    fingerprint: str


def read_large_body(body: LargeBody) -> ReadBody:
    """Parse and resolve a body, in a process that ends after it.

    Raises MalformedError, DocumentError, and StoreError where it names something of the fleet.
    """
    # A document is a tree without a cycle: looking through a million objects again and again takes two thirds of the time.
    gc.disable()
    document = json_object(body.text)
    resolved = resolved_alone(document, body.max_time_limit_s)
    if resolved is None:
        engine = open_engine(body.database_url)
        try:
            resolved = resolved_in_fleet(document, engine, body.tenant, body.max_time_limit_s)
        finally:
            engine.dispose()
    key = SentKey(resolved.key.digest, resolved.key.text, resolved.key.model)
    return ReadBody(Resolved(key, resolved.asked), fingerprint_of(document))
