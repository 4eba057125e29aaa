"""``schema``, ``migrate`` and ``serve``."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from enum import Enum
from types import TracebackType

from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.settings import SAFE_PATH, Auth, LogLevel, SettingError, Settings
from meshwright.app.cli.commands.exits import print_json, tell
from meshwright.costmodels.errors import InvalidInputError

SWITCH_S = 0.0005
"""The longest time that a thread keeps Python's lock while another waits for it (Python: 5 ms). A large body is worked on in a
thread, and a request takes the lock back some twenty times, once after each system call: at 5 ms each the event loop bears ten
requests a second meanwhile, and who asks more often waits for ever longer (`benchmarks/attacks.py`)."""
SHUTDOWN_S = 10
"""Time that running requests have to finish when the service is told to stop; then their solves are ended."""


def run_schema(name: str | None) -> int:
    """Print a JSON Schema, or the names of all."""
    from meshwright.app.web.json_schemas import json_schema, schema_id, schema_names

    if name is None:
        for known in schema_names():
            print(f"{known:20} {schema_id(known)}")
    else:
        print_json(json_schema(name))
    return EXIT_GOOD


class Asking(Enum):
    """The question before data is dropped: put to whoever sits at the terminal, or answered beforehand by ``--yes``."""

    ON = "on"
    OFF = "off"


def run_migrate(down_to: str | None, asking: Asking, settings: Settings) -> int:
    """Bring the database to this version's schema, the queue's tables too; or the schema down to a revision.

    Raises InvalidInputError where going down is not agreed to.
    """
    from meshwright.app.store.engine import open_engine, shown_url
    from meshwright.app.store.migrate import HEAD_REVISION, current_revision, downgrade, upgrade

    engine = open_engine(settings.database_url)
    if down_to is None:
        from meshwright.app.service.engine import migrate_queue

        upgrade(engine)
        migrate_queue(settings.database_url)
    else:
        if asking is Asking.ON:
            _ask(shown_url(engine), down_to)
        downgrade(engine, down_to)
    tell(f"{shown_url(engine)} is at revision {current_revision(engine) or 'base'} (newest: {HEAD_REVISION})")
    return EXIT_GOOD


def _ask(database: str, down_to: str) -> None:
    remedy = "give --yes where you mean it"
    if not sys.stdin.isatty():
        raise InvalidInputError(f"going down to {down_to!r} drops data of {database}, and nobody can be asked", remedy=remedy)
    tell(f"Going down to {down_to!r} drops data of {database}. Type {down_to!r} to go on:")
    if sys.stdin.readline().strip() != down_to:
        raise InvalidInputError("nothing was changed", remedy=remedy)


def run_serve(host: str, port: int, workers: int, settings: Settings) -> int:
    """Serve REST until the process is told to stop, with worker processes of its own.

    Raises SettingError for an open door to other machines and for an address that is taken, StoreError for an SQLite file that
    can't be used.
    """
    from meshwright.app.edge.loopback import is_loopback

    if settings.auth is Auth.OFF and not is_loopback(host):
        raise SettingError(
            "without authentication the service may only listen on this machine",
            given=f"MESHWRIGHT_AUTH=off and --host {host}",
            allowed="a loopback address, as 127.0.0.1",
            remedy="unset MESHWRIGHT_AUTH, and make keys with 'meshwright keys create'",
        )
    _require_free(host, port)

    import uvicorn

    from meshwright.app.edge.connection import bounded_connections
    from meshwright.app.edge.first_visit import FirstVisit
    from meshwright.app.edge.observability import start_tracing
    from meshwright.app.service.queue_metrics import serve_metrics
    from meshwright.app.store.engine import is_sqlite
    from meshwright.app.store.migrate import ensure_ready
    from meshwright.app.store.security import KeyRepository
    from meshwright.app.web.main import create_app

    os.environ[SAFE_PATH] = "1"
    proxies = frozenset(settings.trusted_proxies.split())
    app = create_app(settings)
    if settings.auth is Auth.REQUIRED and is_loopback(host) and port:
        app.state.first_visit = FirstVisit(KeyRepository(app.state.engine))
        tell(f"Open {app.state.first_visit.link(host, port)} in a browser of this machine: it signs in once.")
    if is_sqlite(app.state.engine):
        # A file that can't be used is said in a line here; once the server starts, it would be a traceback.
        ensure_ready(app.state.engine)
    serve_metrics(settings.metrics_address, app.state.engine)
    start_tracing(settings.otlp_endpoint, service="serve")
    app.state.children.start()
    sys.setswitchinterval(SWITCH_S)
    # What is loaded by now stays: the garbage collector needs not look through it again, with Python's lock held.
    gc.collect()
    gc.freeze()
    # The access log is our own: it has the request id.
    level = LogLevel.INFO if settings.log_level is LogLevel.WARNING else settings.log_level
    # Uvicorn ends the process by the signal that stopped it once it has shut down; the workers are to be stopped first.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    if workers:
        app.state.workers_since_s = time.monotonic()
    with WorkerProcesses(workers, settings):
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            log_level=level.value,
            timeout_graceful_shutdown=SHUTDOWN_S,
            http=bounded_connections(per_peer=settings.max_connections_per_peer, unbounded=proxies),
            proxy_headers=bool(proxies),
            forwarded_allow_ips=sorted(proxies),
            ws="none",
        )
    return EXIT_GOOD


def _require_free(host: str, port: int) -> None:
    """Raise SettingError for an address that can't be listened on, before anything is loaded or started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as tried:
            # As uvicorn binds: connections of a service before that are closing do not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise SettingError(
            f"the service can't listen there: {error.strerror or error}",
            given=f"--host {host} --port {port}",
            remedy="give another --port (0 takes a free one), or a --host of this machine",
        ) from None


# ``worker``, and the workers that ``serve`` brings with it.

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
LOOK_EVERY_S = 1.0
PRELOADED = "meshwright.app.service.preloaded_jobs"


class Life(Enum):
    """When a worker ends by itself."""

    OWN = "when it is told to"
    PARENTS = "when the process that started it ends, or when it is told to"


def run_worker(name: str | None, life: Life, settings: Settings) -> int:
    """Solve jobs until the process is told to stop."""
    parent = os.getppid()
    from meshwright.app.edge.observability import start_tracing
    from meshwright.app.service.engine import migrate_queue
    from meshwright.app.service.queue_metrics import serve_metrics
    from meshwright.app.service.sandbox import ChildSolver, Limits
    from meshwright.app.service.worker import Worker
    from meshwright.app.store.engine import is_sqlite, open_engine
    from meshwright.app.store.migrate import ensure_ready

    os.environ[SAFE_PATH] = "1"
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    serve_metrics(settings.metrics_address, engine)
    start_tracing(settings.otlp_endpoint, service="worker")
    if is_sqlite(engine):
        migrate_queue(settings.database_url)
    solver = ChildSolver(limits=Limits(memory_bytes=settings.max_solve_memory_bytes), preload=PRELOADED)
    worker = Worker(engine, settings, solver, name=name)
    stop = threading.Event()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda number, frame: stop.set())
    worker.start()
    while not stop.wait(LOOK_EVERY_S):
        if life is Life.PARENTS and os.getppid() != parent:
            break
    worker.stop()
    engine.dispose()
    return EXIT_GOOD


def worker_command() -> list[str]:
    """Return the command that starts a worker with the code of this process, wherever it is called: nothing of the current
    folder is loaded unless this process loads it, too."""
    places = [place for place in sys.path if place]
    code = f"import sys; sys.path[:] = {places!r}; from meshwright.app.cli.main import main; main()"
    return [sys.executable, "-P", "-c", code, "worker", "--with-parent"]


class WorkerProcesses:
    """Worker processes beside the service: one that ends is started again, all are told to stop at the end."""

    def __init__(self, count: int, settings: Settings):
        self._count, self._drain_s = count, settings.drain_s
        self._stopping = threading.Event()
        self._watchers: list[threading.Thread] = []

    def __enter__(self) -> WorkerProcesses:
        self._watchers = [threading.Thread(target=self._keep_one, daemon=True) for _ in range(self._count)]
        for watcher in self._watchers:
            watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        for watcher in self._watchers:
            watcher.join()

    def _keep_one(self) -> None:
        command = worker_command()
        # The address of metrics is the service's own.
        environment = {name: value for name, value in os.environ.items() if name != "MESHWRIGHT_METRICS_ADDRESS"}
        while not self._stopping.is_set():
            process = subprocess.Popen(command, env=environment)
            while process.poll() is None and not self._stopping.wait(0.1):
                pass
            if self._stopping.is_set():
                self._end(process)
                return
            # A terminal's Ctrl+C, or a signal to the group, ends a worker that is still starting before this process is told.
            is_told = -process.returncode in (signal.SIGTERM, signal.SIGINT)
            if is_told and self._stopping.wait(RESTART_AFTER_S):
                return
            log.error("a worker ended and is started again", extra={"exit_code": process.returncode})
            self._stopping.wait(0.0 if is_told else RESTART_AFTER_S)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * self._drain_s)
            return
        process.kill()
