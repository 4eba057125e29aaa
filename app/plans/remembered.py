"""Texts of stored plans that this process has read, kept while there is room: a stored plan never changes."""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict

from meshwright.costmodels.units import MIB

MOST_BYTES = 64 * MIB
"""A plan's document takes tens of thousands: about a thousand plans."""


class RememberedTexts:
    """Plan documents by tenant and digest, those used last. Threads may share it.

    Where room is wanted, the tenant that takes most of it forgets first: who reads many plans does not push out another's few.
    """

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most = most_bytes
        self._texts: dict[str, OrderedDict[str, str]] = {}
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def find(self, tenant: str, digest: str) -> str | None:
        """The text of a tenant's plan; None when it is not remembered."""
        with self._lock:
            texts = self._texts.get(tenant, OrderedDict())
            text = texts.get(digest)
            if text is not None:
                texts.move_to_end(digest)
            return text

    def keep(self, tenant: str, digest: str, text: str) -> None:
        """Remember a text, and forget those that were not asked for longest."""
        with self._lock:
            texts = self._texts.setdefault(tenant, OrderedDict())
            if digest in texts:
                return
            texts[digest] = text
            self._held[tenant] += sys.getsizeof(text)
            while self._held.total() > self._most:
                self._forget_one()

    def _forget_one(self) -> None:
        """Forget the text that the tenant with the most bytes has not asked for longest."""
        largest = max(self._held, key=self._held.__getitem__)
        _, oldest = self._texts[largest].popitem(last=False)
        self._held[largest] -= sys.getsizeof(oldest)
        if not self._texts[largest]:
            del self._texts[largest], self._held[largest]
