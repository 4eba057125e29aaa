"""Joules of a device by what keeps it busy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.cluster.rank_runs import BusyTime, device_energy_j
from meshwright.costmodels.hardware import device

H100 = device("h100")


def test_parts_add_up() -> None:
    assert device_energy_j(H100, BusyTime(0.0, 0.0, 10.0)) == pytest.approx(700.0)
    assert device_energy_j(H100, BusyTime(10.0, 0.0, 10.0)) == pytest.approx(7000.0)
    # Idle 70 W for 10 s; 630 W more for 4 s of computing and half of that for 2 s of communication.
    assert device_energy_j(H100, BusyTime(4.0, 2.0, 10.0)) == pytest.approx(700.0 + 630.0 * 5.0)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 10))
def test_power_stays_between_idle_and_full(computing_s: float, communicating_s: float, whole_s: float) -> None:
    energy_j = device_energy_j(H100, BusyTime(computing_s, communicating_s, whole_s))
    assert 70.0 * whole_s <= energy_j * (1 + 1e-12)
    assert energy_j <= 700.0 * whole_s * (1 + 1e-12)
