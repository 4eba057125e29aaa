"""A real worker process that is long in getting ready: its fork server takes minutes, as where code is compiled first."""

from __future__ import annotations

import signal
import sys
import threading

from meshwright.app.base.settings import Settings
from meshwright.app.service.sandbox import ChildSolver
from meshwright.app.service.worker import Worker
from meshwright.app.store.engine import open_engine


def main() -> None:
    """Run a worker over a database until SIGTERM, with a second for jobs that run."""
    settings = Settings(sys.argv[1], max_solves=1, drain_s=1)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    engine = open_engine(settings.database_url)
    worker = Worker(engine, settings, ChildSolver(preload="tests.attacks.long_warm_up"))
    worker.start()
    # A signal that another thread receives does not wake this one.
    while not stop.wait(1.0):
        pass
    worker.stop()
