"""What costs more than its size: documents whose faults are described before there are any, steps too long to draw."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.base.quoting import without_commands
from meshwright.app.evidence.logs import megatron_lm
from meshwright.app.pictures.asked import article, part_of_step, picture
from meshwright.app.pictures.step_timeline import MOST_PASSES, has_step, step_timeline
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.limits import Entry, check_values
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import ensure_ready
from meshwright.app.store.plans import PlanStore
from tests.attacks.planned import TRAINED
from tests.attacks.served import served, watching
from tests.support.planned_documents import answered

LONG = "k" * 50_000
DOCUMENTS: dict[str, Any] = {
    "items under a long name": {LONG: [0] * 25_000},
    "names under a long name": {LONG: {str(i): i for i in range(25_000)}},
    "a long name under each of many": [{LONG: i} for i in range(25)],
    "long names one in another": {LONG: {LONG: {LONG: [0] * 25_000}}},
    "texts of another tool's file under a long name": {"config": {LONG: ["\x1b"] * 25_000}},
}


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("entry", list(Entry))
def test_the_check_of_a_document_takes_less_memory_than_the_document(kind: str, entry: Entry) -> None:
    document = DOCUMENTS[kind]
    tracemalloc.start()
    try:
        with contextlib.suppress(DocumentError):
            check_values(document, entry)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Names stay in a fault, once or twice.
    assert peak_bytes < 10 * len(LONG)


def test_a_fault_deep_in_a_document_is_said_with_its_path() -> None:
    with pytest.raises(DocumentError) as caught:
        check_values({"model": {"layers": [{"size": 1.0}, {"size": float("inf")}]}, "search": {"tp": [1]}})
    assert [each.field for each in caught.value.fields] == ["model.layers.1.size"]


@pytest.mark.parametrize("repeated", ["memory (MB) |", "memory (MB) | max reserved", "\n", " ", ":", "::"])
def test_long_lines_are_searched_in_one_pass(repeated: str) -> None:
    """Patterns that begin again at each of their first words took 7 CPU s for 100 kB; these 2 MB would take an hour."""
    text = repeated * (2_000_000 // len(repeated))
    assert megatron_lm.read([text]).peak_memory_bytes is None
    assert without_commands(text)


LONG_STEP = {
    **TRAINED,
    "cluster": {"groups": [{"name": "pool", "node": "dgx-h100", "nodes": 1}]},
    "workload": {"kind": "training", "global_batch": 100_000, "seq_len": 1024},
    "search": {"tp": [1], "pp": [8], "cp": [1], "microbatch": [1], "space": "free"},
}
"""A step of 100,000 micro-batches on eight stages."""


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe"])
def test_a_long_step_is_drawn_with_fewer_micro_batches_and_says_so(schedule: str) -> None:
    given = answered({**LONG_STEP, "search": {**LONG_STEP["search"], "schedules": [schedule]}})
    timeline = step_timeline(given)
    assert has_step(given) and timeline is not None
    assert sum(len(stage.slices) for stage in timeline.stages) <= MOST_PASSES + len(timeline.stages)
    assert "of 100,000 micro-batches" in timeline.left_out
    # The busy time is the whole step's, by which the bubble is counted.
    predicted = given.plan.predicted
    assert predicted is not None and predicted.step_time_s is not None
    assert 0.9 * predicted.step_time_s < max(stage.busy_s for stage in timeline.stages) <= predicted.step_time_s * 1.001
    text = json.dumps(answer_document(given))
    for shown in (
        str(article({"plan": text})["view"]),
        part_of_step({"plan": text, "start": 0.5, "width": 0.1})["svg"],
        picture({"plan": text, "kind": "trace"})["text"],
    ):
        assert "of 100,000 micro-batches" in shown


def test_a_short_step_leaves_nothing_out() -> None:
    given = answered(TRAINED)
    timeline = step_timeline(given)
    assert timeline is not None and timeline.left_out == "" and has_step(given)


@pytest.mark.slow
def test_pages_of_a_long_step_keep_nobody_waiting_and_end_with_their_reader(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    given = answered(LONG_STEP)
    engine = open_engine(url)
    ensure_ready(engine)
    text, _ = PlanStore(engine).keep(given.plan, keyed_request(given.request))
    engine.dispose()
    digest = json.loads(text)["digest"]
    with served(url, tmp_path) as service, watching(f"{service.url}/healthz") as watch:
        page = httpx.get(f"{service.url}/plans/{digest}", timeout=120)
        assert page.status_code == 200 and "of 100,000 micro-batches" in page.text
        before_bytes = service.memory_bytes()
        for _ in range(5):
            with contextlib.suppress(httpx.TimeoutException):
                httpx.get(f"{service.url}/plans/{digest}/trace", timeout=0.2)
        # Those who went hold no turn: the next page is drawn at once.
        assert httpx.get(f"{service.url}/plans/{digest}/timeline", timeout=60).status_code == 200
        assert service.memory_bytes() < before_bytes + 100 * 2**20
        with contextlib.suppress(httpx.TimeoutException):
            httpx.get(f"{service.url}/plans/{digest}/trace", timeout=0.2)
        service.process.terminate()
        service.process.wait(30)
    assert watch.statuses <= {0, 200}
