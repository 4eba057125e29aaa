"""Searches made small enough for tests."""

from __future__ import annotations

import pytest

from solver.serving import evaluation, explain, pools, simulating


@pytest.fixture
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations of 1,500 requests, screened by 300, wherever the search simulates."""
    for module in (evaluation, pools, simulating):
        monkeypatch.setattr(module, "REQUESTS", 1500)
    for module in (evaluation, pools, explain):
        monkeypatch.setattr(module, "SCREENING_REQUESTS", 300)


@pytest.fixture
def few_batch_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six batch limits in place of some sixty."""
    monkeypatch.setattr(evaluation, "STEP_TOKENS", (1024, 4096))
    monkeypatch.setattr(evaluation, "SEQUENCES", (4, 16, 64))
