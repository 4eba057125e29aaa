"""The service answers as its OpenAPI document says, whatever it is asked: a short run of ``benchmarks/fuzz_openapi.py``."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fuzz_openapi import schemathesis
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.store.principal import Scope
from tests.integration.security.service import header
from tests.support.fakes import FakeSolver
from tests.support.service import running_service

EXAMPLES = 2


@pytest.mark.slow
def test_every_answer_is_one_that_the_document_describes(settings: Settings, tmp_path: Path) -> None:
    guarded = replace(settings, auth=Auth.REQUIRED, max_failed_auths_per_s=100_000)
    with running_service(guarded, FakeSolver()) as client:
        key = header(guarded, Scope.ADMIN)["authorization"].removeprefix("Bearer ")
        command = schemathesis(str(client.base_url).rstrip("/"), key, EXAMPLES)
        # It leaves files where it runs.
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:]
    assert "Stateful" in run.stdout
