"""Databases that can be ill-treated: an SQLite file, and a PostgreSQL cluster of one's own that can be restarted at will."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Database:
    """A database's URL, and for PostgreSQL the command line that restarts it without a shutdown."""

    url: str
    restart: tuple[str, ...] = ()

    def crash(self) -> None:
        """Restart it as after a power failure; an SQLite file has nothing to restart."""
        if self.restart:
            subprocess.run(self.restart, check=True, capture_output=True)


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Database]:
    """A new SQLite file."""
    yield Database(f"sqlite:///{folder / 'plans.db'}")


@contextmanager
def postgresql_cluster(settings: str = "") -> Iterator[Database]:
    """A new PostgreSQL cluster on a free port of the loopback address; needs its programs, and root to become another user.

    ``settings`` are further options of the server, as ``-c fsync=off``.
    """
    programs = postgresql_programs()
    assert programs is not None, "PostgreSQL is not installed"
    folder = Path(tempfile.mkdtemp(prefix="meshwright-crash-"))
    try:
        shutil.chown(folder, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 {settings}"
        control = f"{programs}/pg_ctl -D {folder}/data -l {folder}/log -w -o '{options}'"
        _as_postgres(f"{programs}/initdb -D {folder}/data -A trust")
        _as_postgres(f"{control} start")
        try:
            _as_postgres(f"{programs}/createdb -h 127.0.0.1 -p {port} meshwright")
            restart = ("su", "postgres", "-s", "/bin/sh", "-c", f"{control} -m immediate restart")
            yield Database(f"postgresql+psycopg://postgres@127.0.0.1:{port}/meshwright", restart)
        finally:
            _as_postgres(f"{programs}/pg_ctl -D {folder}/data -m immediate stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def postgresql_programs() -> Path | None:
    """The folder of PostgreSQL's programs, where this process can start a cluster of its own; else None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found and os.geteuid() == 0 else None


def _as_postgres(command: str) -> None:
    subprocess.run(["su", "postgres", "-s", "/bin/sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
