"""Steps in processes of their own, each with a limit of time: what one loses, by a crash or by its limit, no other loses."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

Tell = Callable[[dict[str, Any]], None]
"""Keeps a step's results so far; what it told last is what remains of it, however it ends."""

PRELOADED = [
    "benchmarks.gpu_truth.curves",
    "benchmarks.gpu_truth.prediction",
    "benchmarks.gpu_truth.serving",
    "benchmarks.gpu_truth.training",
    "meshwright._calls",
    "meshwright.app.evidence.measuring.fitted",
]
"""Imported once, before any process is forked: importing takes seconds, and touches no device."""


class Status(StrEnum):
    """The end of a step."""

    DONE = "done"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Step:
    """A function of a process of its own: called with a ``Tell`` and ``given``. It may take ``limit_s`` seconds."""

    name: str
    function: Callable[..., None]
    given: dict[str, Any]
    limit_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A step that has ended: how, after how long, its error in a line, and the results that it told last."""

    name: str
    status: Status
    seconds: float
    error: str | None
    results: dict[str, Any]


class Runner:
    """Runs steps one after another; their results and what they print lie in ``folder``, under their names."""

    def __init__(self, folder: Path, *, ends_s: float):
        self._folder, self._ends_s = folder, ends_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def without_forks(self) -> None:
        """Let every further process begin afresh: where a device was touched before a fork, CUDA can't be used after it."""
        self._context = multiprocessing.get_context("spawn")

    @property
    def left_s(self) -> float:
        """Seconds until the time for all steps ends."""
        return self._ends_s - time.monotonic()

    def run(self, step: Step) -> Ended:
        """Run a step until it ends, or its limit or the time of all of them does."""
        limit_s = min(step.limit_s, self.left_s)
        if limit_s <= 0:
            return Ended(step.name, Status.NOT_RUN, 0.0, "the time was over", {})
        results, log = self._folder / f"{step.name}.json", self._folder / f"{step.name}.log"
        results.unlink(missing_ok=True)
        began_s = time.monotonic()
        process = self._context.Process(target=_as_step, args=(step.function, step.given, results, log))
        process.start()
        try:
            process.join(limit_s)
            in_time = process.exitcode is not None
        finally:
            _end(process)
        seconds = time.monotonic() - began_s
        status = Status.OUT_OF_TIME if not in_time else Status.DONE if process.exitcode == 0 else Status.FAILED
        told = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        return Ended(step.name, status, seconds, _why(status, log, process.exitcode, limit_s), told)


def _why(status: Status, log: Path, exit_code: int | None, limit_s: float) -> str | None:
    match status:
        case Status.DONE:
            return None
        case Status.OUT_OF_TIME:
            return f"stopped after {limit_s:.0f} s"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    killed = f"ended by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
    return lines[-1] if lines and exit_code == 1 else killed


def _as_step(function: Callable[..., None], given: dict[str, Any], results: Path, log: Path) -> None:
    # A group of its own: compilers that it starts end with it.
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)

    def tell(told: dict[str, Any]) -> None:
        whole = results.with_suffix(".part")
        whole.write_text(json.dumps(told, indent=1), encoding="utf-8")
        whole.replace(results)

    try:
        function(tell, **given)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        sys.exit(1)


def _end(process: Any) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
