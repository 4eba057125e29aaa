"""What goes wrong at the first visit is said in one sentence, with what to do."""

from __future__ import annotations

import socket

import pytest

from meshwright.app.base.documents import parse_document
from meshwright.app.base.settings import SettingError, Settings
from meshwright.app.cli.commands.operating import run_serve
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


def test_tabs_in_yaml_are_said_with_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"line 2, column 1.*indent with spaces"):
        parse_document(b"model:\n\tcatalog: llama-3.1-8b\n", what="request")


def test_the_help_of_keys_lists_every_scope() -> None:
    assert ", ".join(Scope) == SCOPES
