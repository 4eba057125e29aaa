"""The time that compiling takes is not taken from a search's."""

from __future__ import annotations

import time

from numba import njit

from meshwright.app.base.solving import TimeLimit, compiled_s


def test_the_clock_of_a_limit_stands_still_while_a_function_is_compiled() -> None:
    limit = TimeLimit.after(0.0)
    assert limit()
    before_s, began_s = compiled_s(), time.monotonic()
    assert njit(lambda value: value + 1)(1) == 2
    took_s, compiled = time.monotonic() - began_s, compiled_s() - before_s
    assert 0 < compiled <= took_s
    # No moment of a limit has come that is as far off as what was compiled.
    assert not TimeLimit(limit.deadline_s + took_s)()
    assert not TimeLimit.after(3600.0)() and not TimeLimit.after(3600.0).part(0.5)()


def test_a_function_that_is_compiled_already_takes_from_the_time() -> None:
    function = njit(lambda value: value + 2)
    function(1)
    known_s = compiled_s()
    assert function(1) == 3
    assert compiled_s() == known_s
