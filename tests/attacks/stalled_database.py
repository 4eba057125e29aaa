"""Shared by the tests of stalled database and others: frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def frozen(port: str) -> Iterator[None]:
    """Stop every process of the server that listens on a port, and let them go on at the end."""
    processes = [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and (path / "comm").exists() and (path / "comm").read_text().startswith("postgres")
    ]
    ours = [process for process in processes if _listens(process, port)]
    assert ours, "no server is found to freeze"
    children = [process for process in processes if _parent(process) in ours]
    for process in (*ours, *children):
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in (*children, *ours):
            os.kill(process, signal.SIGCONT)


def _listens(process: int, port: str) -> bool:
    return f"\0{port}\0" in Path(f"/proc/{process}/cmdline").read_text()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
