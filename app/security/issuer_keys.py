"""The public keys of a token issuer: fetched by one thread at a time, outside of every lock, and not too often."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from joserfc.jwk import KeySet

from meshwright.app.errors import IssuerUnavailableError

log = logging.getLogger(__name__)

KEYS_FRESH_S = 3600.0
KEYS_USABLE_S = 2 * KEYS_FRESH_S
"""Keys that are older are used no more: the issuer may have withdrawn one."""
MIN_REFRESH_S = 30.0
"""A token with an unknown key id, or a failure of the issuer, makes the keys be fetched anew at most this often."""
FIRST_WAIT_S = 12.0
"""The longest wait for the first keys that there are: two documents are fetched, each within its own time."""


class IssuerKeys:
    """Keeps keys for an hour. Those that it has serve everybody while new ones are fetched, or can't be."""

    def __init__(self, fetch: Callable[[], KeySet], clock: Callable[[], float]):
        self._fetch, self._clock = fetch, clock
        self._keys: KeySet | None = None
        self._fetched_at_s = 0.0
        self._failed_at_s: float | None = None
        self._failure = ""
        self._fetching: threading.Event | None = None
        self._lock = threading.Lock()

    def current(self) -> KeySet:
        """Return the keys; raises IssuerUnavailableError where there are none that may be used."""
        return self._keys_at_most(KEYS_FRESH_S)

    def renewed(self) -> KeySet:
        """Return the keys after a token named none of them, fetched anew if that was not done lately."""
        return self._keys_at_most(MIN_REFRESH_S)

    def _keys_at_most(self, old_s: float) -> KeySet:
        with self._lock:
            if self._has_keys(old_s) or self._has_failed_lately():
                return self._usable()
            fetching, is_mine = self._fetching, self._fetching is None
            if fetching is None:
                fetching = self._fetching = threading.Event()
            elif self._has_keys(KEYS_USABLE_S):
                return self._usable()
        if is_mine:
            self._renew(fetching)
        else:
            fetching.wait(FIRST_WAIT_S)
        with self._lock:
            return self._usable()

    def _renew(self, done: threading.Event) -> None:
        try:
            keys = self._fetch()
        except IssuerUnavailableError as error:
            with self._lock:
                self._failed_at_s, self._failure = self._clock(), str(error)
            log.error("no keys of the token issuer: %s; asked again in %g s", error, MIN_REFRESH_S)
        else:
            with self._lock:
                self._keys, self._fetched_at_s, self._failed_at_s = keys, self._clock(), None
        finally:
            with self._lock:
                self._fetching = None
            done.set()

    def _has_keys(self, old_s: float) -> bool:
        return self._keys is not None and self._clock() - self._fetched_at_s <= old_s

    def _has_failed_lately(self) -> bool:
        return self._failed_at_s is not None and self._clock() - self._failed_at_s <= MIN_REFRESH_S

    def _usable(self) -> KeySet:
        if self._keys is None or not self._has_keys(KEYS_USABLE_S):
            raise IssuerUnavailableError(self._failure or "the token issuer has not answered yet")
        return self._keys
