"""Checks with figures of a stranger's making: refused at the door, and of those that are stored few are drawn, in a child."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from meshwright.app.base.records import to_document
from meshwright.app.base.settings import Settings
from meshwright.app.pictures import courses as drawing
from meshwright.app.regression.lock import Policy
from meshwright.app.regression.report import MAX_FIGURE_NAME, MAX_FIGURES, CheckReport, PlanCheck, Verdict
from meshwright.app.store.checks import CheckRepository, StoredCheck
from meshwright.app.store.engine import open_engine
from meshwright.app.store.principal import LOCAL

PLAN = "a.plan.yaml"


def report(figures: dict[str, float], *, of: str = "now") -> Any:
    checked = PlanCheck(PLAN, Verdict.SAME, was={}, now={})
    document = to_document(CheckReport, CheckReport("plans", 0, Policy(), "", (checked,), {"same": 1}, {}))
    document["plans"][0][of] = figures
    return document


def post(client: httpx.Client, figures: dict[str, float], *, of: str = "now") -> httpx.Response:
    return client.post("/v1/checks", json={"project": "ours", "report": report(figures, of=of)})


@pytest.mark.parametrize("of", ["now", "was"])
@pytest.mark.parametrize(
    "figures",
    [
        {f"figure_{number}": 1.0 for number in range(MAX_FIGURES + 1)},
        {"x" * (MAX_FIGURE_NAME + 1): 1.0},
        {"": 1.0},
        {"two\nlines": 1.0},
    ],
    ids=["many", "long", "none", "lines"],
)
def test_strange_figures_are_refused(client: httpx.Client, figures: dict[str, float], of: str) -> None:
    answer = post(client, figures, of=of)
    assert answer.status_code == 422, answer.text
    assert "report.plans.0" in answer.text


def test_figures_as_they_are_are_kept_and_drawn(client: httpx.Client) -> None:
    assert post(client, {"tokens_per_s": 10.0, "memory_headroom_bytes": 2.0**30}).status_code == 201
    page = client.get("/checks/trend", params={"project": "ours", "plan": PLAN})
    assert page.status_code == 200 and "tokens per s over checks" in page.text


def test_figures_that_were_stored_before_cost_a_bounded_page(
    client: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drawn in the serving process, and of 100,000 names few are drawn at all."""
    monkeypatch.setattr(drawing, "line_chart", None)
    figures = {f"figure_{number}": 1.0 for number in range(100_000)}
    engine = open_engine(settings.database_url)
    told = report(figures)
    stored = StoredCheck(str(uuid.uuid4()), "ours", datetime.now(UTC), 0, json.dumps(told))
    CheckRepository(engine, LOCAL.tenant).add(stored)
    engine.dispose()
    page = client.get("/checks/trend", params={"project": "ours", "plan": PLAN})
    assert page.status_code == 200, page.text[:500]
    assert page.text.count("<svg") == drawing.MOST_CHARTS
    assert len(page.content) < 2_000_000
