"""A real worker process whose solve goes on until the process ends."""

from __future__ import annotations

import signal
import sys
import threading
import time

from meshwright.app.base.settings import Settings
from meshwright.app.service.sandbox import ChildSolver, Limits
from meshwright.app.service.worker import Worker
from meshwright.app.store.engine import open_engine
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress
from meshwright.solver.problem.request import PlanRequest


def long_plan(request: PlanRequest, on_progress: OnProgress) -> Plan:
    """Solve for longer than anybody waits."""
    time.sleep(3600)
    raise AssertionError("nobody waits for an hour")


def main() -> None:
    """Run a worker: arguments as those of ``tests.crash.worker``."""
    url, slots, takeover_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    settings = Settings(url, max_solves=slots, takeover_after_s=takeover_s, drain_s=1)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    worker = Worker(open_engine(url), settings, ChildSolver(long_plan, Limits(), preload="tests.attacks.long_worker"))
    worker.start()
    # A signal that another thread receives does not wake this one.
    while not stop.wait(1.0):
        pass
    worker.stop()
