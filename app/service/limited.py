"""What every child process of a service or worker does first: it ends with its parent, and lives within its limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2): the signal that a process gets when its parent ends."""
FIRST_PRELOADED = "meshwright.app.service.preloaded_first"
"""The module that every fork server loads before any other."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Linux, control groups version 2: the bytes that a container may use, or ``max``."""


def live_within(*, cpu_s: int, memory_bytes: int | None) -> None:
    """In a child: end with the parent, and take no more than these seconds of processor and bytes of data (None: no limit)."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        # Data, not address space: libraries reserve gigabytes of addresses that they never touch.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def end_fork_server() -> None:
    """End the server that children are forked from, whatever it is doing."""
    # The standard library offers no way to end the server before its time; without this attribute it is waited for.
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def memory_of_machine() -> int:
    """Bytes of memory that this process can have: the machine's, or its container's where that has less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return machine


def _die_with_parent() -> None:
    """Have the kernel end this process when the fork server ends, as it does when the worker was killed.

    The server ends when nobody holds the other end of its line any more. Children are given that end as well, so that they
    could start others; as long as they kept it, the server would wait for them and they for the server.
    """
    line = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if line is not None:
        with contextlib.suppress(OSError):
            os.close(line)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
