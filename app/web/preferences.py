"""The preferences of callers, in headers: to wait for an answer, and how urgent it is."""

from __future__ import annotations

import re

from meshwright.app.base.errors import DocumentError, FieldError
from meshwright.app.store.jobs import DEFAULT_URGENCY, LEAST_URGENT

MAX_WAIT_S = 600.0

PREFER = f"'wait=N' (RFC 7240): wait up to N seconds, at most {MAX_WAIT_S:g}, for the plan instead of getting its job."
PRIORITY = "'u=N' (RFC 9218): 0 is served first, 7 last; 3 when left out."
IDEMPOTENCY_KEY = "The same key with the same body leads to what the first call led to."

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")
_URGENCY = re.compile(r"(?:^|[,\s])u=([0-7])(?:$|[,;\s])")


def wait_of(prefer: str | None) -> float:
    """Seconds that the caller waits for the answer; 0 unless its Prefer header says so. What else it prefers is ignored."""
    found = _WAIT.search(prefer or "")
    return min(float(found[1]), MAX_WAIT_S) if found else 0.0


def urgency_of(priority: str | None) -> int:
    """Urgency in a Priority header; raises DocumentError on one that can't be read."""
    if priority is None:
        return DEFAULT_URGENCY
    found = _URGENCY.search(priority)
    if found is None:
        fault = FieldError("priority", "value can't be used", given=repr(priority), allowed=f"u=0 to u={LEAST_URGENT}")
        raise DocumentError("this header can't be used", (fault,))
    return int(found[1])
