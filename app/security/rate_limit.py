"""Rate limits: a token bucket for each caller, in this process."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.app.errors import RateLimitedError

MAX_BUCKETS = 10_000
"""Callers remembered at once. One that was forgotten starts with a full bucket, so forgetting lets nobody be refused."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimiter:
    """Lets each caller make ``rate_per_s`` requests a second in the long run, and twice as many at once.

    Raises ValueError for a rate that is not positive.
    """

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic):
        if not rate_per_s > 0:
            raise ValueError(f"rate_per_s must be positive, got {rate_per_s}")
        self._rate_per_s = rate_per_s
        self._most = max(1.0, 2.0 * rate_per_s)
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, caller: str) -> None:
        """Count a request of a caller; raises RateLimitedError when there were too many."""
        self._ask(caller, counted=1.0)

    def check(self, caller: str) -> None:
        """Raise RateLimitedError if a request of a caller would be one too many; counts nothing."""
        self._ask(caller, counted=0.0)

    def _ask(self, caller: str, *, counted: float) -> None:
        with self._lock:
            bucket = self._filled(caller)
            if bucket.tokens >= 1.0:
                bucket.tokens -= counted
                return
            wait_s = math.ceil((1.0 - bucket.tokens) / self._rate_per_s)
        raise RateLimitedError(
            f"too many requests: {self._rate_per_s:g} a second are allowed to each caller; try again in {wait_s} s", wait_s
        )

    def _filled(self, caller: str) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.pop(caller, None) or _Bucket(self._most, now_s)
        bucket.tokens = min(self._most, bucket.tokens + (now_s - bucket.at_s) * self._rate_per_s)
        bucket.at_s = now_s
        self._buckets[caller] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket
