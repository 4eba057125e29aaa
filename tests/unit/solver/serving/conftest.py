"""Searches made small enough for tests."""

from __future__ import annotations

import pytest

from meshwright.solver.serving import explain
from meshwright.solver.serving.forms.pools import pools
from meshwright.solver.serving.forms.switched import form as given_switched
from meshwright.solver.serving.promise import evaluation
from meshwright.solver.serving.workers import simulation


@pytest.fixture
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations of 1,500 requests, screened by 300, wherever the search simulates."""
    for module in (evaluation, given_switched, pools, simulation):
        monkeypatch.setattr(module, "REQUESTS", 1500)
    for module in (evaluation, pools, explain):
        monkeypatch.setattr(module, "SCREENING_REQUESTS", 300)


@pytest.fixture
def few_batch_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six batch limits in place of some sixty."""
    for module in (evaluation, given_switched):
        monkeypatch.setattr(module, "STEP_TOKENS", (1024, 4096))
        monkeypatch.setattr(module, "SEQUENCES", (4, 16, 64))
