"""Generators of clients take the OpenAPI document: nothing in it stops them, and where one is installed it makes a client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.base.settings import SAFE_PATH, Auth, Settings
from meshwright.app.requests.examples import INFEASIBLE_REQUEST, SERVING_REQUEST, TRAINING_REQUEST
from meshwright.app.web.main import create_app
from tests.integration.web_actions import Here
from tests.support.service import running_service

GENERATOR = os.environ.get("MESHWRIGHT_CLIENT_GENERATOR") or shutil.which("openapi-python-client")
"""openapi-python-client, of an environment of its own."""
CALLS = """
import json, sys
from made import Client
from made.api.plans import make_plan_v1_plans_post as plans
from made.models import ExplanationDocument, RequestDocument
address, document = sys.argv[1:]
client = Client(base_url=address.rstrip("/"), timeout=100)
ask = lambda: plans.sync_detailed(client=client, body=RequestDocument.from_dict(json.loads(document)), prefer="wait=50")
found = first = ask()
while found.status_code == 202:  # A busy machine is not done yet: asked again, the service waits for the same job.
    found = ask()
answer = {"first": first.status_code, "status": found.status_code, "kind": type(found.parsed).__name__}
print(json.dumps(answer | {"read": found.parsed.to_dict(), "sent": json.loads(found.content)}))
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = Settings(f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'plans.db'}", auth=Auth.OFF)
    return create_app(settings).openapi()


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for name, each in value.items():
            if name not in ("example", "examples"):
                yield from schemas_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from schemas_in(each)


def test_no_default_is_an_object(document: dict[str, Any]) -> None:
    found = [each for each in schemas_in(document) if isinstance(each.get("default"), dict) and "type" not in each["default"]]
    assert found == []
    assert "Default: {" in json.dumps(document), "it is said in words"


def test_components_have_names_of_classes(document: dict[str, Any]) -> None:
    parts = document["components"]["schemas"]
    assert [name for name in parts if not name.isidentifier() or "__" in name] == []
    assert [name for name, part in parts.items() if part["title"] != name] == []


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


@pytest.fixture(scope="module")
def made(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds a generated client."""
    if GENERATOR is None:
        pytest.skip("openapi-python-client is not installed; MESHWRIGHT_CLIENT_GENERATOR may name it")
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    command = [GENERATOR, "generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Unable to" not in run.stdout + run.stderr and "will not be generated" not in run.stdout + run.stderr, run.stdout
    return folder


def called(folder: Path, *arguments: str) -> dict[str, Any]:
    """The answer of a program that uses the client, run by the generator's own interpreter, which has what it imports."""
    assert GENERATOR is not None
    python = Path(GENERATOR).with_name("python")
    command = [str(python) if python.exists() else sys.executable, "-c", CALLS, *arguments]
    # A service that ran in this process may have closed the folder to imports, of which the client is one.
    there = {name: value for name, value in os.environ.items() if name != SAFE_PATH}
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500, env=there)
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_a_client_has_a_call_for_every_operation(document: dict[str, Any], made: Path) -> None:
    operations = sum(len(methods) for methods in document["paths"].values())
    calls = [path for path in (made / "made" / "api").rglob("*.py") if path.name != "__init__.py"]
    assert len(calls) == operations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_document", "status", "kind"),
    [
        (TRAINING_REQUEST, 201, "PlanDocument"),
        (SERVING_REQUEST, 201, "PlanDocument"),
        (INFEASIBLE_REQUEST, 201, "PlanDocument"),
        (TRAINING_REQUEST | {"model": {"catalog": "lama"}}, 422, "ProblemDocument"),
    ],
    ids=["training", "serving", "infeasible", "unknown"],
)
def test_a_client_makes_plans(request_document: dict[str, Any], status: int, kind: str, made: Path, settings: Settings) -> None:
    with running_service(settings, Here()) as service:
        answer = called(made, str(service.base_url), json.dumps(request_document))
    # A plan that was waited for twice is there already when it is asked for again.
    waited = answer["first"] == 202
    assert (answer["status"], answer["kind"]) == (200 if waited else status, kind)
    assert not waited or status == 201
    # Nothing that the service says gets lost in the records of the client, the request that was sent included.
    assert answer["read"] == answer["sent"]
