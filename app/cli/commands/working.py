"""``worker``, and the workers that ``serve`` brings with it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from enum import Enum
from types import TracebackType

from meshwright.app.errors import EXIT_GOOD
from meshwright.app.settings import Settings

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
LOOK_EVERY_S = 1.0
PRELOADED = "meshwright.app.worker.preloaded"


class Life(Enum):
    """When a worker ends by itself."""

    OWN = "when it is told to"
    PARENTS = "when the process that started it ends, or when it is told to"


def run_worker(name: str | None, life: Life, settings: Settings) -> int:
    """Solve jobs until the process is told to stop."""
    parent = os.getppid()
    from meshwright.app.db.engine import is_sqlite, open_engine
    from meshwright.app.db.migrate import ensure_ready
    from meshwright.app.jobs.engine import migrate_queue
    from meshwright.app.jobs.queue_metrics import serve_metrics
    from meshwright.app.jobs.sandbox import ChildSolver, Limits
    from meshwright.app.observability.tracing import start_tracing
    from meshwright.app.worker.worker import Worker

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


class Workers:
    """Worker processes beside the service: one that ends is started again, all are told to stop at the end."""

    def __init__(self, count: int, settings: Settings):
        self._count, self._drain_s = count, settings.drain_s
        self._stopping = threading.Event()
        self._watchers: list[threading.Thread] = []

    def __enter__(self) -> Workers:
        self._watchers = [threading.Thread(target=self._keep_one, daemon=True) for _ in range(self._count)]
        for watcher in self._watchers:
            watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        for watcher in self._watchers:
            watcher.join()

    def _keep_one(self) -> None:
        command = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", "worker", "--with-parent"]
        # The address of metrics is the service's own.
        environment = {name: value for name, value in os.environ.items() if name != "MESHWRIGHT_METRICS_ADDRESS"}
        while not self._stopping.is_set():
            process = subprocess.Popen(command, env=environment)
            while process.poll() is None and not self._stopping.wait(0.1):
                pass
            if self._stopping.is_set():
                self._end(process)
                return
            log.error("a worker ended and is started again", extra={"exit_code": process.returncode})
            self._stopping.wait(RESTART_AFTER_S)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * self._drain_s)
            return
        process.kill()
