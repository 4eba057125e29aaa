"""What goes wrong at the first visit is said in one sentence, with what to do."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from meshwright.app.base.documents import parse_document
from meshwright.app.base.settings import SettingError, Settings
from meshwright.app.cli.commands import operating
from meshwright.app.cli.commands.operating import WorkerProcesses, run_serve
from meshwright.app.cli.service import SCOPES
from meshwright.app.store.principal import Scope
from meshwright.costmodels.errors import InvalidInputError


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=rf"listen there.*--port {port}.*another --port"):
            run_serve("127.0.0.1", port, 0, Settings(database_url="sqlite://"))


@pytest.mark.parametrize(("ending", "is_told"), [("os.kill(os.getpid(), 15)", True), ("os._exit(3)", False)])
def test_a_worker_that_the_same_signal_ended_is_not_started_again(
    ending: str, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Ctrl+C reaches a worker that is starting before the service is told; one that ends by itself is said and replaced."""
    starts = tmp_path / "starts"
    program = f"import os; open({str(starts)!r}, 'a').write('.'); {ending}"
    monkeypatch.setattr(operating, "worker_command", lambda: [sys.executable, "-c", program])
    # Long enough that the service is told meanwhile, or so short that a second worker comes at once.
    monkeypatch.setattr(operating, "RESTART_AFTER_S", 60.0 if is_told else 0.01)
    with WorkerProcesses(1, Settings(database_url="sqlite://")):
        for _ in range(2000):
            if starts.exists() and starts.stat().st_size >= (1 if is_told else 2):
                break
            time.sleep(0.01)
    assert any("started again" in record.message for record in caplog.records) != is_told
    assert (starts.stat().st_size == 1) == is_told


def test_tabs_in_yaml_are_said_with_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"line 2, column 1.*indent with spaces"):
        parse_document(b"model:\n\tcatalog: llama-3.1-8b\n", what="request")


def test_the_help_of_keys_lists_every_scope() -> None:
    assert ", ".join(Scope) == SCOPES
