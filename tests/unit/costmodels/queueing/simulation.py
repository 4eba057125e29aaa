"""Shared by the tests of simulation and others: stream_of, requests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from meshwright.costmodels.queueing.load import RequestStream


def stream_of(*requests: tuple[float, int, int]) -> RequestStream:
    arrival, prompt, output = zip(*requests, strict=True)
    return RequestStream(np.array(arrival), np.array(prompt), np.array(output))


requests = st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=40).map(
    lambda rows: [(sum(gap for gap, _, _ in rows[: i + 1]), p, o) for i, (_, p, o) in enumerate(rows)]
)
