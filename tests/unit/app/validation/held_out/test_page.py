"""The page of accuracy shows the bands that plans print, and the rates that chips ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.held_out.tables import error_model_cells
from meshwright.app.evidence.training.prediction import silicon_name
from meshwright.costmodels.cluster.cluster import TIMED_ALONE, UNTOLD_RATES, Device
from meshwright.costmodels.hardware import device as device_named
from meshwright.costmodels.hardware import devices
from meshwright.solver.training.report.bands import ASSUMED_FRAMEWORK, KNOWN_FRAMEWORK, StepErrorModel

PAGE = Path(__file__).parents[5] / "docs" / "accuracy.md"

SAME_CHIP = {
    "those of the A100, the same chip": "a100-sxm-80gb",
    "those of the H100, the same chip": "h100-sxm-80gb",
}
"""Devices whose rates chips take that are named otherwise, by what they say of their rates."""


@pytest.mark.parametrize(("name", "model"), [("stated", KNOWN_FRAMEWORK), ("assumed", ASSUMED_FRAMEWORK)])
def test_the_page_has_the_bands_that_ship(name: str, model: StepErrorModel) -> None:
    assert f"| {name} | {error_model_cells(model)} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("device", devices(), ids=lambda device: device.name)
def test_the_page_has_the_rates_that_a_chip_ships(device: Device) -> None:
    ships = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("\\", "") for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1] == silicon_name(device):
            ships[cells[0]] = cells[3]

    rates = device.sustained
    if ships:
        assert ships == {name: f"{getattr(rates, name):.2f}" for name in ("matrix", "low_precision_matrix", "memory")}
    elif device.sources.get("sustained") in SAME_CHIP:
        assert rates == device_named(SAME_CHIP[device.sources["sustained"]]).sustained
    else:
        assert rates in (TIMED_ALONE, UNTOLD_RATES)
