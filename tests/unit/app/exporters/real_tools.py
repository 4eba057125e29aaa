"""Asking the launchers' own parsers, in a process of their own.

They are looked for in this interpreter's environment, or in the one that MESHWRIGHT_LAUNCHER_PYTHON names: launchers pin
versions that do not go with ours. PYTHONPATH is handed on, so an unpacked wheel will do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_SCRIPTS = Path(__file__).parent / "real"
_LIMIT_S = 400
_LONGEST_ARGUMENT = 128 * 1024
_MARK = "ANSWER"


def ask(tool: str, script: str, question: object, *, search_path: Path | None = None) -> Any:
    """The script's answer to a question, both JSON; skips the test where the tool is not installed."""
    if not _installed(tool):
        pytest.skip(f"{tool} is not installed; MESHWRIGHT_LAUNCHER_PYTHON may name an interpreter that has it")
    environment = dict(os.environ)
    if search_path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(search_path), environment.get("PYTHONPATH"))))
    # Scripts read their question as an argument, which has 128 KiB, or where it may be longer from stdin.
    asked = json.dumps(question)
    run = subprocess.run(
        [_python(), str(_SCRIPTS / script), *([asked] if len(asked) < _LONGEST_ARGUMENT else [])],
        input=asked,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env=environment,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith(_MARK)]
    assert lines, f"{script} did not answer: {run.stderr[-2000:]}"
    return json.loads(lines[-1].removeprefix(_MARK))


def _python() -> str:
    return os.environ.get("MESHWRIGHT_LAUNCHER_PYTHON", sys.executable)


@cache
def _installed(tool: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({tool!r}) is None)"
    return subprocess.run([_python(), "-c", look], capture_output=True, check=False).returncode == 0
