"""Databases that can be ill-treated: an SQLite file, and a PostgreSQL cluster of one's own that can be restarted at will."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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
def postgresql_cluster(settings: str = "", parent: Path | None = None) -> Iterator[Database]:
    """A new PostgreSQL cluster on a free port of the loopback address; needs its programs, and root to become another user.

    ``settings`` are further options of the server, as ``-c fsync=off``; its files are in a new folder of ``parent``.
    """
    programs = postgresql_programs()
    assert programs is not None, "PostgreSQL is not installed"
    folder = Path(tempfile.mkdtemp(prefix="meshwright-crash-", dir=parent))
    try:
        shutil.chown(folder, "postgres")
        port = _free_port()
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 {settings}"
        control = f"{programs}/pg_ctl -D {folder}/data -l {folder}/log -w -o '{options}'"
        _as_postgres(f"cp -a {_new_cluster(programs)} {folder}/data")
        _as_postgres(f"{control} start")
        try:
            restart = ("su", "postgres", "-s", "/bin/sh", "-c", f"{control} -m immediate restart")
            yield Database(f"postgresql+psycopg://postgres@127.0.0.1:{port}/meshwright", restart)
        finally:
            _as_postgres(f"{programs}/pg_ctl -D {folder}/data -m immediate stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _new_cluster(programs: Path) -> Path:
    """The files of a new cluster with its database, made once in a process: every cluster begins as a copy of them."""
    folder = Path(tempfile.mkdtemp(prefix="meshwright-cluster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.chown(folder, "postgres")
    data, port = folder / "data", _free_port()
    control = f"{programs}/pg_ctl -D {data} -w -o '-p {port} -k {folder} -c listen_addresses=127.0.0.1'"
    _as_postgres(f"{programs}/initdb -D {data} -A trust --no-sync")
    _as_postgres(f"{control} -l {folder}/log start")
    try:
        _as_postgres(f"{programs}/createdb -h 127.0.0.1 -p {port} meshwright")
    finally:
        _as_postgres(f"{control} stop")
    return data


@dataclass(frozen=True)
class Pair:
    """A PostgreSQL primary with a synchronous replica, the URL that finds whichever takes writes, the commands that end the
    primary and promote the replica, and the one that controls the replica."""

    url: str
    failing: tuple[str, str]
    survivor: str

    def fail_over(self) -> None:
        """End the primary as a power failure does, for good, and promote the replica."""
        for command in self.failing:
            _as_postgres(command)


@contextmanager
def postgresql_failing_over() -> Iterator[Database]:
    """A primary with a replica, which fails over the first time that it is restarted, and then restarts."""
    with postgresql_pair() as pair:
        stop, promote = pair.failing
        primary, replica = stop.replace("-m immediate stop", "status"), pair.survivor
        command = f"if {primary} > /dev/null; then {stop} && {promote}; else {replica} -m immediate restart; fi"
        yield Database(pair.url, ("su", "postgres", "-s", "/bin/sh", "-c", command))


@contextmanager
def postgresql_pair(settings: str = "") -> Iterator[Pair]:
    """A primary and a replica that has what was committed, each on a free port of the loopback address."""
    programs = postgresql_programs()
    assert programs is not None, "PostgreSQL is not installed"
    folder = Path(tempfile.mkdtemp(prefix="meshwright-pair-"))
    ports = [_free_port() for _ in range(2)]
    # Commits wait for the replica: what was told to a caller is there after the fail-over.
    sync = "-c synchronous_standby_names=* -c wal_level=replica -c hot_standby=on"

    def control(number: int, options: str = "") -> str:
        server = f"-p {ports[number]} -k {folder} -c listen_addresses=127.0.0.1 {settings} {options}"
        return f"{programs}/pg_ctl -D {folder}/{number} -l {folder}/log{number} -w -o '{server}'"

    try:
        shutil.chown(folder, "postgres")
        _as_postgres(f"cp -a {_new_cluster(programs)} {folder}/0")
        _as_postgres(f"{control(0)} start")
        _as_postgres(f"{programs}/pg_basebackup -h 127.0.0.1 -p {ports[0]} -D {folder}/1 -R -X stream --checkpoint=fast")
        _as_postgres(f"{control(1)} start")
        _as_postgres(f"{control(0, sync)} -m fast restart")
        hosts = "&".join(f"host=127.0.0.1:{port}" for port in ports)
        url = f"postgresql+psycopg://postgres@/meshwright?{hosts}&target_session_attrs=read-write"
        yield Pair(url, (f"{control(0)} -m immediate stop", f"{programs}/pg_ctl -D {folder}/1 -w promote"), control(1))
    finally:
        for number in range(2):
            with contextlib.suppress(subprocess.CalledProcessError):
                _as_postgres(f"{programs}/pg_ctl -D {folder}/{number} -m immediate stop 2>/dev/null")
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def postgresql_programs() -> Path | None:
    """The folder of PostgreSQL's programs, where this process can start a cluster of its own; else None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found and os.geteuid() == 0 else None


def _as_postgres(command: str) -> None:
    subprocess.run(["su", "postgres", "-s", "/bin/sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
