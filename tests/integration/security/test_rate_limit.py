"""Rate limits: a burst, then the rate, each caller by itself."""

from __future__ import annotations

import pytest

from meshwright.app.base.errors import RateLimitedError
from meshwright.app.edge import authentication as rate_limit
from meshwright.app.edge.authentication import RateLimiter


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def taken(limiter: RateLimiter, caller: str, tries: int) -> int:
    """Return the number of simultaneous requests that are let through."""
    count = 0
    for _ in range(tries):
        try:
            limiter.take(caller)
            count += 1
        except RateLimitedError:
            pass
    return count


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(10, clock)
    assert taken(limiter, "a", 100) == 20
    clock.now_s += 0.5
    assert taken(limiter, "a", 100) == 5
    clock.now_s += 1000
    assert taken(limiter, "a", 100) == 20


def test_callers_do_not_share() -> None:
    limiter = RateLimiter(1, Clock())
    assert taken(limiter, "a", 9) == 2
    assert taken(limiter, "b", 9) == 2


def test_the_caller_is_told_how_long_to_wait() -> None:
    clock = Clock()
    limiter = RateLimiter(0.1, clock)
    assert taken(limiter, "a", 1) == 1
    with pytest.raises(RateLimitedError) as error:
        limiter.take("a")
    assert error.value.wait_s == 10
    clock.now_s += error.value.wait_s
    limiter.take("a")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_BUCKETS", 3)
    limiter = RateLimiter(1, Clock())
    for number in range(50):
        limiter.take(str(number))
    assert len(limiter._buckets) == 3


def test_a_rate_must_be_positive() -> None:
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            RateLimiter(rate)
