from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.queueing.load import Load, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, Window, simulate, timeline
from tests.unit.costmodels.queueing.simulation import stream_of
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)


def test_a_timeline_counted_by_hand() -> None:
    # One request at 0 and one at 2: 1 s of prompt, then 3 rounds of 1 s; the second waits for nobody.
    times = linear_times(fixed_s=1.0)
    result = simulate(times, stream_of((0.0, 4, 4), (2.0, 4, 2)), BatchLimits(4, 8, 100), window=ALL)
    line = timeline([result], intervals=4)
    assert line.end_s == 4.0
    # First: prompt in [0, 1], decoding in [1, 4]. Second: its prompt joins the round of [2, 3], then decodes in [3, 4].
    assert line.waiting.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0])
    assert line.decoding.tolist() == pytest.approx([0.0, 1.0, 1.0, 2.0])
    assert line.busy.tolist() == pytest.approx([1.0] * 4)


def test_the_timeline_adds_up_to_the_means() -> None:
    stream = poisson_stream(Load(6.0, TokenCount(500.0), TokenCount(40.0)), requests=500, seed=0)
    times = linear_times(fixed_s=5e-3, token_s=1e-5)
    parts = [simulate(times, stream[k::2], BatchLimits(32, 2048, 40_000), window=ALL) for k in range(2)]
    line = timeline(parts[:1], intervals=10)
    assert np.mean(line.decoding) == pytest.approx(parts[0].mean_batch)
    assert np.mean(line.busy) == pytest.approx(parts[0].busy)
    both = timeline(parts, intervals=10)
    assert np.all((both.busy >= 0.0) & (both.busy <= 1.0))
