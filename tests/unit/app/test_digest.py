"""The digest: one for what is asked, however it is written, and another for anything that can change the plan."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.requests import digests as digest
from meshwright.app.requests.digests import DIGEST_PATTERN, calibration_digest, digest_of_texts, field_texts, keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.version import COST_MODEL_VERSION
from meshwright.solver.answer.plan import PLAN_SCHEMA
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.version import SOLVER_VERSION
from tests.support.requests_given import resolved, serving, tiny_graph, training


def digest_of(request: PlanRequest) -> str:
    """Return the digest under which the plan of a request is stored."""
    return keyed_request(request).digest


BASE = digest_of(resolved())


def shuffled(document: Any, random: Any) -> Any:
    """The document with the keys of every object in another order."""
    if isinstance(document, dict):
        keys = list(document)
        random.shuffle(keys)
        return {key: shuffled(document[key], random) for key in keys}
    return [shuffled(item, random) for item in document] if isinstance(document, list) else document


def test_form() -> None:
    assert DIGEST_PATTERN.fullmatch(BASE)


@pytest.mark.slow
@given(random=st.randoms(use_true_random=False))
def test_order_defaults_and_references_do_not_matter(random: Any) -> None:
    written_out = request_document(resolved())
    assert digest_of(resolved(shuffled(written_out, random))) == BASE


def test_whole_numbers_may_be_written_as_floats() -> None:
    limit = {"time_limit_s": 60}
    assert digest_of(resolved(training(search=limit))) == BASE
    assert digest_of(resolved(training(search={"time_limit_s": 60.0}))) == BASE


@pytest.mark.parametrize(
    "document",
    [
        serving(),
        training(objective="step_time"),
        training(search={"seed": 1}),
        training(search={"tp": [1]}),
        training(slo={"min_tokens_per_s": 1.0}),
        training(cluster={"catalog": "dgx-h100", "nodes": 2}),
        training(cluster={"catalog": "dgx-h100", "memory_reserve": 0.1}),
        training(model={"catalog": "llama-3.1-8b", "name": "other"}),
        training(model={"graph": tiny_graph()}),
        training(workload=training()["workload"] | {"global_batch": 64}),
    ],
)
def test_everything_that_is_asked_matters(document: dict[str, Any]) -> None:
    assert digest_of(resolved(document)) != BASE


@pytest.mark.parametrize("name", ["SOLVER_VERSION", "COST_MODEL_VERSION", "PLAN_SCHEMA"])
def test_versions_matter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(digest, name, "another")
    assert digest_of(resolved()) != BASE


def test_calibration_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DIGEST_PATTERN.fullmatch(calibration_digest())
    monkeypatch.setattr(digest, "calibration_digest", lambda: "another")
    assert digest_of(resolved()) != BASE


def test_numbers_without_a_canonical_form_are_refused() -> None:
    with pytest.raises(WorkloadError, match="no canonical form"):
        digest_of_texts(field_texts({"n": 2**53 + 1}))


@pytest.mark.parametrize("document", [training(), serving(), training(model={"graph": tiny_graph()})])
def test_digest_is_the_hash_of_the_whole_canonical_form(document: dict[str, Any]) -> None:
    request = request_document(resolved(document))
    whole = {
        "plan_schema": PLAN_SCHEMA,
        "solver_version": SOLVER_VERSION,
        "cost_model_version": COST_MODEL_VERSION,
        "calibration": calibration_digest(),
        "request": request,
    }
    expected = f"sha256:{hashlib.sha256(rfc8785.dumps(whole)).hexdigest()}"
    # The second time, parts of it are remembered.
    assert [digest_of_texts(field_texts(request)) for _ in range(2)] == [expected, expected]
