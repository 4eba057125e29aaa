"""Loaded first by fork servers: what asks a service or worker to stop is for the process that started them, which ends them.

A terminal sends its interrupt to all processes of a group, and systemd its SIGTERM to all of a unit. A server or child that
ended of it by itself would fail the job that the worker gives back.
"""

from __future__ import annotations

import signal

for _signal in (signal.SIGTERM, signal.SIGINT):
    signal.signal(_signal, signal.SIG_IGN)
