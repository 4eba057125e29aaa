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

from meshwright.app.rest.main import create_app
from meshwright.app.settings import Auth, Settings

GENERATOR = os.environ.get("MESHWRIGHT_CLIENT_GENERATOR") or shutil.which("openapi-python-client")
"""openapi-python-client, of an environment of its own."""


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


def test_a_client_is_made_and_imported(document: dict[str, Any], tmp_path: Path) -> None:
    if GENERATOR is None:
        pytest.skip("openapi-python-client is not installed; MESHWRIGHT_CLIENT_GENERATOR may name it")
    (tmp_path / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    command = [GENERATOR, "generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Unable to" not in run.stdout + run.stderr and "will not be generated" not in run.stdout + run.stderr, run.stdout
    operations = sum(len(methods) for methods in document["paths"].values())
    calls = [path for path in (tmp_path / "made" / "api").rglob("*.py") if path.name != "__init__.py"]
    assert len(calls) == operations
    python = Path(GENERATOR).with_name("python")
    lines = "import made.api.plans.make_plan_v1_plans_post, made.models as m; m.RequestDocument, m.ExplanationDocument"
    subprocess.run([str(python) if python.exists() else sys.executable, "-c", lines], cwd=tmp_path, check=True)
