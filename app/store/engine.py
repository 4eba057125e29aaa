"""The database engine: SQLite (WAL, foreign keys, one writer at a time) or PostgreSQL, by URL."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidatePoolError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import SettingError

# Deadlines of PostgreSQL connections, and a pause after one that was missed.
#
# A server that is frozen, or a network that swallows packets, answers nothing at all: its own
# statement time-out does not run, and the kernel goes on to acknowledge what is sent. So the client
# ends the connection: a thread shuts the socket of whoever holds a connection for too long, and
# whoever waits on it gets an error. After that nobody is let near the database for a while but one
# at a time, to see whether it answers again: else every thread of the process would wait out its
# own deadline.

HELD_S = 5.0
"""The longest that a connection is held: ten times the longest that one was by 2,000 submissions of eight threads and their
deletion, 0.47 s (99% within 0.2 s) on two cores with the database, at a load of 24 (`benchmarks/held_connections.py`)."""
PAUSE_S = 1.0
"""Between two tries of a database that did not answer."""


class Pause:
    """Remembers that a database did not answer. Safe to share among threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._next_try_s: float | None = None

    def may_try(self) -> bool:
        """Return True if the database is thought to answer, or if it is this caller's turn to see."""
        with self._lock:
            if self._next_try_s is None:
                return True
            now_s = self._clock()
            if now_s < self._next_try_s:
                return False
            self._next_try_s = now_s + PAUSE_S
            return True

    def missed(self) -> None:
        """Note that it did not answer."""
        with self._lock:
            self._next_try_s = self._clock() + PAUSE_S

    def answered(self) -> None:
        """Note that it did."""
        if self._next_try_s is not None:
            with self._lock:
                self._next_try_s = None


class Deadlines:
    """Ends the connections of an engine that are held for longer than ``held_s``, and tells ``pause``."""

    def __init__(self, engine: Engine, pause: Pause, *, held_s: float = HELD_S):
        self._pause, self._held_s = pause, held_s
        self._held: dict[Any, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        event.listen(engine, "checkout", self._begin)
        event.listen(engine, "checkin", self._end)
        event.listen(engine, "invalidate", self._end_of_broken)

    @property
    def pause(self) -> Pause:
        """The pause of the engine's database."""
        return self._pause

    def exempt(self, connection: Any) -> None:
        """Let a driver connection be held for as long as it takes, until it is given back."""
        with self._changed:
            self._held.pop(connection, None)

    def _begin(self, connection: Any, record: ConnectionPoolEntry, proxy: object) -> None:
        with self._changed:
            self._held[connection] = time.monotonic() + self._held_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="database-deadlines", daemon=True)
                self._thread.start()
            if len(self._held) == 1:
                self._changed.notify()

    def _end(self, connection: Any, record: ConnectionPoolEntry) -> None:
        with self._changed:
            self._held.pop(connection, None)

    def _end_of_broken(self, connection: Any, record: ConnectionPoolEntry, error: object) -> None:
        self._end(connection, record)

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._held:
                    self._changed.wait()
                now_s = time.monotonic()
                late = [connection for connection, deadline_s in self._held.items() if deadline_s <= now_s]
                for connection in late:
                    del self._held[connection]
                next_s = min(self._held.values(), default=now_s + self._held_s)
            for connection in late:
                self._pause.missed()
                _shut(connection)
            time.sleep(max(0.05, min(next_s - time.monotonic(), self._held_s)))


def _shut(connection: Any) -> None:
    """Shut a driver connection's socket, so that whoever waits on it gets an error."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


BUSY_TIMEOUT_MS = 10_000
"""The longest time that an SQLite writer waits for another one: longer than any write of ours by orders of magnitude."""

PING_AFTER_S = 1.0
"""A PostgreSQL connection that was idle for longer is tried before it is used."""

CONNECT_S = 3
"""The longest time to connect to PostgreSQL: libpq counts in whole seconds, and takes two at least."""

POOL_S = 2.0
"""The longest wait for a connection of the pool: all are in use for so long only when the database does not answer."""

ALLOWED_DATABASES = "sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
_RESTART = "restart the service and its workers, with the file in its place"
_WRITER = "meshwright_writer"
_USED_S = "meshwright_used_s"

_DEADLINES: WeakKeyDictionary[Dialect, Deadlines] = WeakKeyDictionary()
"""The deadlines of each PostgreSQL engine, by the dialect that it shares with the engines made of it by execution options."""

P = ParamSpec("P")
Answer = TypeVar("Answer")


def open_engine(url_text: str) -> Engine:
    """Engine of the database at a URL; an SQLite file's folder is created. Raises SettingError on a URL of another kind."""
    url = _parsed_url(url_text)
    if url.get_backend_name() == "postgresql":
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={"connect_timeout": CONNECT_S, "options": f"-c statement_timeout={int(1000 * HELD_S)}"},
            pool_timeout=POOL_S,
        )
        _DEADLINES[engine.dialect] = Deadlines(engine, Pause())
        _ping_idle_connections(engine)
        return engine
    engine = create_engine(url)
    event.listen(engine, "connect", _set_up_sqlite)
    if url.database and url.database != ":memory:":
        _make_folder(Path(url.database).parent)
        _refuse_another_file(engine, Path(url.database))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def is_sqlite(engine: Engine) -> bool:
    """Return True if the engine's database is SQLite, which a user's own command may create and migrate by itself."""
    return engine.dialect.name == "sqlite"


async def read_soon(engine: Engine, read: Callable[P, Answer], *arguments: P.args, **options: P.kwargs) -> Answer:
    """Return the answer of a short read of the database, for a caller on the event loop.

    SQLite answers it there and then: with WAL no writer holds a reader up, and handing it to a thread would take three times
    as long as the read itself. PostgreSQL is waited for in a thread.
    """
    if is_sqlite(engine):
        return read(*arguments, **options)
    return await asyncio.to_thread(read, *arguments, **options)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads; raises StoreError when the database can't answer.

    On PostgreSQL each statement is one of its own: it sees what is committed when it begins, as within a transaction (READ
    COMMITTED), and spares two of three round trips.
    """
    with _store_errors(engine), engine.connect() as connection:
        if not is_sqlite(engine):
            connection.execution_options(isolation_level="AUTOCOMMIT")
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes, committed at the end; raises StoreError when the database can't take it.

    On SQLite it takes the write lock at once (BEGIN IMMEDIATE): a reader that turned writer could only fail.
    """
    with _store_errors(engine), engine.execution_options(**{_WRITER: True}).begin() as connection:
        yield connection


def take_all_time(connection: Connection) -> None:
    """Lift the deadlines of a connection in a transaction, for work that may take minutes, as migrations do."""
    deadlines = _DEADLINES.get(connection.dialect)
    if deadlines is not None:
        deadlines.exempt(connection.connection.dbapi_connection)
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def shown_url(engine: Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string(hide_password=True)


def _ping_idle_connections(engine: Engine) -> None:
    """Have connections that a restart of the database has closed replaced before they are used.

    One that was used a moment ago is trusted: asking the database each time would be a round trip more for every query.
    """

    def note_use(connection: object, record: ConnectionPoolEntry) -> None:
        record.info[_USED_S] = time.monotonic()

    def ping(connection: Any, record: ConnectionPoolEntry, proxy: object) -> None:
        if time.monotonic() - record.info.get(_USED_S, math.inf) < PING_AFTER_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", note_use)
    event.listen(engine, "checkout", ping)


def _parsed_url(text: str) -> URL:
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError):
        backend = ""
    if backend not in ("sqlite", "postgresql"):
        # The URL is not shown: it may hold a password.
        raise SettingError("the database URL can't be used", allowed=ALLOWED_DATABASES, remedy="set MESHWRIGHT_DATABASE_URL")
    return url


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder of the plan store can't be made: {error}") from None


def _set_up_sqlite(connection: Any, record: object) -> None:
    # The driver's own transaction handling is switched off, so that we choose how a transaction begins.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        # With WAL, NORMAL loses no committed transaction to a crash of the program and stays consistent after power loss;
        # FULL also keeps the last transactions after power loss, and a plan is worth one sync.
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _refuse_another_file(engine: Engine, path: Path) -> None:
    """Raise StoreError once another file has taken the place of the one that was opened first.

    Connections that are open would go on writing to the old file, which nobody can open any more.
    """
    first: tuple[int, int] | None = None

    def identity() -> tuple[int, int]:
        try:
            found = path.stat()
        except OSError as error:
            raise StoreError(f"the file of the plan store {path} is gone: {error.strerror}; {_RESTART}") from None
        return found.st_dev, found.st_ino

    def require_same() -> None:
        if identity() != first:
            raise StoreError(f"another file was put in place of the plan store {path}; {_RESTART}")

    def connect(dialect: object, record: object, arguments: object, options: dict[str, Any]) -> sqlite3.Connection | None:
        if first is None:
            return None
        # No other file is read by the write-ahead log of the first, and no empty one is made where it is gone.
        require_same()
        try:
            opened: sqlite3.Connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, **options)
        except sqlite3.OperationalError:
            identity()
            raise
        return opened

    def compare(connection: object, record: object, proxy: object) -> None:
        nonlocal first
        first = first or identity()
        require_same()

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkout", compare)


def _begin_sqlite(connection: Connection) -> None:
    writer = connection.get_execution_options().get(_WRITER, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")


@contextmanager
def _store_errors(engine: Engine) -> Iterator[None]:
    deadlines = _DEADLINES.get(engine.dialect)
    pause = None if deadlines is None else deadlines.pause
    if pause is not None and not pause.may_try():
        raise StoreError(f"the plan store {shown_url(engine)} did not answer a moment ago")
    try:
        yield
        if pause is not None:
            pause.answered()
    except DBAPIError as error:
        if pause is not None and error.connection_invalidated:
            pause.missed()
        raise StoreError(f"the plan store {shown_url(engine)} does not answer: {error.orig}") from error
    except PoolTimeoutError as error:
        raise StoreError(f"the plan store {shown_url(engine)} does not answer: all connections wait for it") from error
    except sqlite3.Error as error:
        # From setting up a connection, where SQLAlchemy does not wrap the driver's errors.
        raise StoreError(f"the plan store {shown_url(engine)} can't be opened: {error}") from error
