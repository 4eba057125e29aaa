"""The command line run in the test's own process, and a problem for its ``shard`` command."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.cli.main import main

Json = dict[str, Any]

SHARDING_PROBLEM = {
    "problem": {
        "name": "pair",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[5, 1], [2, 2]], "usages": [[4, 9], [4, 4]]},
        "edges": {"nodes": [[0, 1]], "costs": [[0, 7, 3, 8]]},
        "usage_limit": 10,
    }
}


class Cli:
    """Runs commands in this process; keeps what they printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path):
        self._monkeypatch, self._capsys, self.folder = monkeypatch, capsys, folder
        self.out = self.err = ""

    def __call__(self, *args: str, stdin: bytes = b"") -> int:
        self._monkeypatch.setattr(sys, "argv", ["meshwright", *args])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def write(self, name: str, document: Any) -> str:
        path = self.folder / name
        path.write_text(json.dumps(document))
        return str(path)

    def json(self) -> Json:
        document: Json = json.loads(self.out)
        return document
