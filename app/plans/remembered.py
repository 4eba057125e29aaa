"""Texts of stored plans that this process has read, kept while there is room: a stored plan never changes."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

from meshwright.app.settings import MIB

MOST_BYTES = 64 * MIB
"""A plan's document takes tens of thousands: about a thousand plans."""


class RememberedTexts:
    """Plan documents by tenant and digest, those used last. Threads may share it."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most, self._held = most_bytes, 0
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, tenant: str, digest: str) -> str | None:
        """The text of a tenant's plan; None when it is not remembered."""
        with self._lock:
            text = self._texts.get((tenant, digest))
            if text is not None:
                self._texts.move_to_end((tenant, digest))
            return text

    def keep(self, tenant: str, digest: str, text: str) -> None:
        """Remember a text, and forget those that were not asked for longest."""
        with self._lock:
            if (tenant, digest) in self._texts:
                return
            self._texts[tenant, digest] = text
            self._held += sys.getsizeof(text)
            while self._held > self._most:
                _, oldest = self._texts.popitem(last=False)
                self._held -= sys.getsizeof(oldest)
