"""Of a finite run of requests all are counted; only pieces of a load that goes on keep a warm-up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.dealing import dealt_to_fewest
from meshwright.costmodels.queueing.simulation.disaggregated import CacheTransfer, Pool, simulate_decode, simulate_prefill
from meshwright.costmodels.queueing.simulation.replica import (
    EVERYTHING,
    BatchLimits,
    SimulationResult,
    pooled,
    simulate,
    simulate_closed_loop,
)
from meshwright.costmodels.queueing.simulation.switched import LayoutChange, PhaseEngine, simulate_switched
from tests.unit.costmodels.queueing.tables import linear_times

TIMES = linear_times(fixed_s=5e-3, token_s=1e-4)
LIMITS = BatchLimits(16, 4096, 10**6)
PIECE = poisson_stream(Load(30.0, TokenCount(300.0, 0.5), TokenCount(40.0, 0.5)), requests=300, seed=0)
BURST = replace(PIECE, arrival_s=np.zeros(300), is_finite=True)


def _open(stream: RequestStream) -> SimulationResult:
    return simulate(TIMES, stream, LIMITS)


def _closed(stream: RequestStream) -> SimulationResult:
    return simulate_closed_loop(TIMES, stream, LIMITS, concurrency=4)


def _pools(stream: RequestStream) -> SimulationResult:
    pool = Pool(TIMES, LIMITS, 2)
    return simulate_decode(pool, simulate_prefill(pool, CacheTransfer(0.0, 0.0), stream, seed=0), stream, seed=0).whole


def _switched(stream: RequestStream) -> SimulationResult:
    phase = PhaseEngine(TIMES, LIMITS)
    return simulate_switched(phase, phase, LayoutChange(0.0, 0.0, 0.0, 0.0, 10**6), stream).whole


@pytest.mark.parametrize("run", [_open, _closed, _pools, _switched])
def test_all_requests_of_a_finite_run_are_counted(run: object) -> None:
    assert callable(run)
    assert (len(run(BURST).ttft_s), run(BURST).one_run) == (300, True)
    assert len(run(replace(BURST, is_finite=False)).ttft_s) == 255


def test_a_burst_waits_as_long_as_its_first_and_its_last() -> None:
    """In a queue that grows or drains, the middle is not the whole: its mean is that of all requests, by hand."""
    whole = simulate(TIMES, BURST, LIMITS)
    assert whole.ttft_s.tolist() == simulate(TIMES, BURST, LIMITS, window=EVERYTHING).ttft_s.tolist()
    assert float(np.max(whole.ttft_s)) == pytest.approx(float(np.max(whole.requests.first_s)))


def test_parts_of_a_finite_run_are_finite() -> None:
    parts = (BURST[::2], BURST[np.arange(10)], BURST.faster(2.0), *dealt_to_fewest(TIMES, BURST, LIMITS, workers=2))
    assert all(part.is_finite for part in parts)
    assert pooled([simulate(TIMES, part, LIMITS) for part in parts]).ttft(0.95).low > 0.0
    assert not PIECE[::2].is_finite
