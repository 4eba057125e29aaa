"""A service in a process of its own, for load and fault tests: loopback address, own database, no authentication."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

START_S = 240.0
MESHWRIGHT = (sys.executable, "-c", "from meshwright.app.cli.main import main; main()")


@dataclass(frozen=True)
class ServiceProcess:
    """A service that runs: its address and its process."""

    url: str
    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def resident_bytes(self) -> int:
        """Memory of the service: of its process and of those that it reads large bodies in, but not of workers (Linux)."""
        return service_bytes(self.process.pid)

    def processor_s(self) -> tuple[float, float]:
        """Return the seconds for which the service had a processor, and for which its process waited to get one (Linux).

        What it waited tells others' work on the machine from its own: an answer that is late for want of a processor.
        """
        used_ns = waited_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):
                used, waited, _ = (thread / "schedstat").read_text().split()
                used_ns, waited_ns = used_ns + int(used), waited_ns + int(waited)
        others_s = sum(_processor_s(pid) for pid in _own(self.process.pid) if pid != self.process.pid)
        return used_ns / 1e9 + others_s, waited_ns / 1e9

    def make_key(self, *scopes: str) -> str:
        """A new API key with these scopes."""
        options = [option for scope in scopes for option in ("--scope", scope)]
        command = [*MESHWRIGHT, "keys", "create", "benchmark", *options]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()


def service_bytes(pid: int) -> int:
    """Memory of a service's process and of its descendants but workers; pages that several of them share count once (Linux)."""
    return sum(_pss_bytes(each) for each in _own(pid))


def _own(service: int) -> list[int]:
    """The process of a service and its descendants, those of workers left out."""
    own, looked_at = [], [service]
    while looked_at:
        pid = looked_at.pop()
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"worker" not in words:
                own.append(pid)
                tasks = Path(f"/proc/{pid}/task").iterdir()
                looked_at += [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return own


def _pss_bytes(pid: int) -> int:
    """Return the memory of a process, each shared page divided by those that share it; 0 for one that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _processor_s(pid: int) -> float:
    """Return the seconds of processor that a process and its children that have ended used; 0 for one that has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def running_process(folder: Path, *options: str, **environment: str) -> Iterator[ServiceProcess]:
    """A service with its database in a folder, until the block ends; its log goes to ``service.log`` there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = dict(os.environ) | {
        "MESHWRIGHT_AUTH": "off",
        "MESHWRIGHT_DATABASE_URL": f"sqlite:///{folder}/plans.db",
        **environment,
    }
    command = [*MESHWRIGHT, "serve", "--port", str(port), *options]
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(command, env=given, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}", process)
            yield ServiceProcess(f"http://127.0.0.1:{port}", process, given)
            assert process.poll() is None, f"the service ended with {process.returncode}"
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        assert process.poll() is None, f"the service ended with {process.returncode}"
        try:
            if httpx.get(f"{url}/healthz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise TimeoutError(f"no service at {url} after {START_S:g} s")
