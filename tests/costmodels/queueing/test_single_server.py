from __future__ import annotations

import math

import numpy as np
import pytest

from costmodels.errors import WorkloadError
from costmodels.queueing.single_server import waiting_time


@pytest.mark.parametrize("utilisation", [0.1, 0.5, 0.8, 0.95])
def test_mean_wait_is_that_of_m_d_1(utilisation: float) -> None:
    wait = waiting_time(utilisation / 0.2, np.array([0.2]))
    assert wait.mean_s == pytest.approx(utilisation * 0.2 / (2 * (1 - utilisation)), rel=0.005)


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.95])
def test_percentile_is_that_of_m_m_1(utilisation: float) -> None:
    # Exponential service of mean one as equally likely quantiles; P(W > t) = rho exp(-(1 - rho) t).
    service = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)
    wait = waiting_time(utilisation, service)
    assert wait.quantile(0.95) == pytest.approx(math.log(utilisation / 0.05) / (1 - utilisation), rel=0.01)


def test_two_kinds_of_customers_wait_as_pollaczek_khinchine() -> None:
    service = np.array([0.1, 0.1, 0.1, 0.9])
    rate, mean, square = 2.0, 0.3, float(np.mean(service**2))
    assert waiting_time(rate, service).mean_s == pytest.approx(rate * square / (2 * (1 - rate * mean)), rel=0.01)


def test_independent_times_add_up() -> None:
    alone = waiting_time(2.0, np.array([0.2]))
    extra = waiting_time(2.0, np.array([0.2]), (np.array([0.0, 0.4]), np.array([1.0])))
    assert extra.mean_s == pytest.approx(alone.mean_s + 0.2 + 1.0, rel=0.01)


def test_nobody_waits_for_an_idle_server() -> None:
    assert waiting_time(0.1, np.array([0.2])).quantile(0.95) == 0.0


def test_overload_is_refused() -> None:
    with pytest.raises(WorkloadError, match="outrun"):
        waiting_time(5.0, np.array([0.2]))
