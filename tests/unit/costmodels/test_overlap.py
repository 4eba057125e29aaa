"""Streams that run together: laws, and the closed form for two."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.network.overlap import (
    MEASURED_INTERFERENCE,
    Interference,
    Stream,
    Together,
    exposed_s,
    pair_exposed_s,
)

SECONDS = st.floats(0, 10)
FACTORS = st.floats(1, 3)


def every_set() -> list[Together]:
    """The sets of two, three and four streams: eleven, of 28 streams in all."""
    return [frozenset(streams) for size in (2, 3, 4) for streams in combinations(Stream, size)]


def elapsed_s(alone_s: Mapping[Stream, float], interference: Interference) -> float:
    """Seconds until all streams are done that start together, each taking ``alone_s`` when nothing else runs.

    Whenever a stream ends, the others go on at the rates of those that remain (as in Mist, EuroSys'25).
    """
    left = {stream: seconds for stream, seconds in alone_s.items() if seconds > 0}
    elapsed = 0.0
    while left:
        together = frozenset(left)
        factors = {stream: interference.slowdown(stream, together) for stream in left}
        first_s = min(seconds * factors[stream] for stream, seconds in left.items())
        elapsed += first_s
        left = {
            stream: seconds - first_s / factors[stream]
            for stream, seconds in left.items()
            if seconds * factors[stream] > first_s * (1 + 1e-12)
        }
    return elapsed


@st.composite
def interferences(draw: st.DrawFn) -> Interference:
    return Interference({streams: {stream: draw(FACTORS) for stream in streams} for streams in every_set()})


def test_without_interference_the_longest_decides() -> None:
    assert elapsed_s({Stream.COMPUTE: 3.0, Stream.INTRA_NODE: 2.0, Stream.HOST_COPY: 1.0}, Interference()) == 3.0


def test_a_triple_goes_on_as_a_pair_when_one_is_done() -> None:
    pair, triple = frozenset((Stream.COMPUTE, Stream.INTRA_NODE)), frozenset(list(Stream)[:3])
    interference = Interference({pair: {Stream.COMPUTE: 2.0}, triple: dict.fromkeys(triple, 3.0)})
    # All three for 3 s, in which each does 1 s of its work; then compute at half speed beside the other; then alone.
    alone = {Stream.COMPUTE: 4.0, Stream.INTRA_NODE: 3.0, Stream.INTER_NODE: 1.0}
    assert elapsed_s(alone, interference) == pytest.approx(3.0 + 2.0 + 2.0)


def test_sets_that_are_not_given_multiply_their_pairs() -> None:
    pairs = {frozenset((Stream.COMPUTE, other)): {Stream.COMPUTE: 1.5} for other in (Stream.INTRA_NODE, Stream.INTER_NODE)}
    assert Interference(pairs).slowdown(Stream.COMPUTE, frozenset(list(Stream)[:3])) == 2.25
    assert Interference(pairs).slowdown(Stream.INTRA_NODE, frozenset(list(Stream)[:3])) == 1.0


@given(interference=interferences(), seconds=st.lists(SECONDS, min_size=4, max_size=4))
def test_overlap_is_between_the_longest_and_slowed_one_by_one(interference: Interference, seconds: list[float]) -> None:
    together = elapsed_s(dict(zip(Stream, seconds, strict=True)), interference)
    assert max(seconds) <= together * (1 + 1e-9) + 1e-9
    assert together <= 3 * sum(seconds) * (1 + 1e-9) + 1e-9


@given(interference=interferences(), compute=SECONDS, communication=SECONDS)
def test_two_streams_follow_the_closed_form(interference: Interference, compute: float, communication: float) -> None:
    exposed = exposed_s(np.array([communication]), np.array([compute]), Stream.INTER_NODE, interference)
    alone = {Stream.COMPUTE: compute, Stream.INTER_NODE: communication}
    assert compute + exposed[0] == pytest.approx(elapsed_s(alone, interference), abs=1e-9)


def test_hidden_communication_still_slows_computation() -> None:
    exposed = exposed_s(np.array([1.0]), np.array([10.0]), Stream.INTRA_NODE, MEASURED_INTERFERENCE)
    assert exposed[0] == pytest.approx(1 - 1 / 1.189)
    excess = exposed_s(np.array([1.0]), np.array([10.0]), Stream.INTRA_NODE, Interference())
    assert excess[0] == 0


def test_each_pass_of_a_pair_hides_what_the_other_sends() -> None:
    """Exchanges of 3 s under passes of 2 s and 4 s: 1 s outlasts the forward pass, and nothing the backward pass."""
    exchange, forward, backward = (np.array(seconds) for seconds in (3.0, 2.0, 4.0))
    assert pair_exposed_s(exchange, forward, backward, Stream.INTER_NODE, Interference()) == (0.0, 1.0)
    of_forward, of_backward = pair_exposed_s(exchange, forward, backward, Stream.INTER_NODE)
    # Of the backward pass 3 / 1.189 s are done in the 3 s beside the exchange, and the forward pass is done within them.
    assert of_forward == pytest.approx(3.0 - 3.0 / 1.189)
    assert of_backward == pytest.approx(1.0)
