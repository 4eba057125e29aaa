"""The benchmark of risk runs on what it says it runs on, and sees a plan that is above its quantile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.presets import REQUESTS
from benchmarks.risk import above_quantile, compare_with_enumeration, named_requests, priced
from meshwright.costmodels.model.memory_law import DEFAULT_RISK, MAX_RISK


def test_seventeen_requests_at_the_default_risk() -> None:
    named = dict(named_requests())
    assert len(named) == 17
    assert {request.search.risk for request in named.values()} == {DEFAULT_RISK}


def test_the_price_is_what_the_median_would_gain() -> None:
    whole = REQUESTS[0].request(None)
    each = priced("8b", replace(whole, search=replace(whole.search, pp=(1,), cp=(1,), tp=(1,))))
    assert each.lost > 0.0
    assert not above_quantile(each.safe, DEFAULT_RISK)
    assert above_quantile(each.bold, DEFAULT_RISK) and not above_quantile(each.bold, MAX_RISK)
    assert not above_quantile(replace(each.bold, predicted=None), DEFAULT_RISK)


def test_random_requests_agree_and_are_counted_by_risk(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_with_enumeration(2) == 0
    assert "2 of 2 agree" in capsys.readouterr().out
