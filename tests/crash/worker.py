"""A real worker process whose solves are quick and always the same."""

from __future__ import annotations

import signal
import sys
import threading

from meshwright.app.base.logs import start_logging
from meshwright.app.base.settings import LogFormat, LogLevel, Settings
from meshwright.app.service.sandbox import ChildSolver, Limits
from meshwright.app.service.worker import Worker
from meshwright.app.store.engine import open_engine
from tests.crash.quick import quick_plan


def main() -> None:
    """Run a worker: arguments are the database's URL, the jobs at a time, and the seconds of silence before a takeover."""
    url, slots, takeover_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    start_logging(LogLevel.WARNING, LogFormat.TEXT)
    settings = Settings(url, max_solves=slots, takeover_after_s=takeover_s, drain_s=10)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    worker = Worker(open_engine(url), settings, ChildSolver(quick_plan, Limits(), preload="tests.crash.quick"))
    worker.start()
    # A signal that another thread receives does not wake this one.
    while not stop.wait(1.0):
        pass
    worker.stop()
