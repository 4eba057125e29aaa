"""The others, while a service is attacked: ``python -m benchmarks.attack_watch PORT PLAN``; the key is the first line of stdin.

A process of its own, which loads nothing but the standard library. It asks for ``/healthz`` over a new connection each time, as
a kubelet does, and for a stored plan over one that it keeps, both at even times. It prints a line when it has begun; when its
stdin ends, seconds and statuses of the answers as a JSON document.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable

MODEST, PROBE = "127.0.0.5", "127.0.0.6"
HEALTH_EVERY_S, PLAN_EVERY_S = 0.1, 0.05
ASK_S = 30.0


def main() -> int:
    port, plan, key = int(sys.argv[1]), sys.argv[2], sys.stdin.readline().strip()
    over = threading.Event()
    found: dict[str, dict[str, list[float]]] = {}

    def look(name: str, every_s: float, ask: Callable[[], int]) -> None:
        found[name] = asked_at_even_times(over, every_s, ask)

    stored = asker(port, MODEST, plan, {"authorization": f"Bearer {key}"}, keeps=True)
    looks = [
        threading.Thread(target=look, args=("health", HEALTH_EVERY_S, asker(port, PROBE, "/healthz", {}, keeps=False))),
        threading.Thread(target=look, args=("plan", PLAN_EVERY_S, stored)),
    ]
    for thread in looks:
        thread.start()
    print("begun", flush=True)
    sys.stdin.read()
    over.set()
    for thread in looks:
        thread.join()
    print(json.dumps(found), flush=True)
    return 0


def asked_at_even_times(over: threading.Event, every_s: float, ask: Callable[[], int]) -> dict[str, list[float]]:
    """Ask until it is over. An answer counts from when it was due: who must wait for the one before waits too."""
    seconds: list[float] = []
    statuses: list[float] = []
    began_s, number = time.monotonic(), 0
    while not over.is_set():
        due_s = began_s + number * every_s
        if due_s > time.monotonic() and over.wait(due_s - time.monotonic()):
            break
        statuses.append(ask())
        seconds.append(time.monotonic() - due_s)
        number += 1
    return {"seconds": seconds, "statuses": statuses}


def asker(port: int, address: str, path: str, headers: dict[str, str], *, keeps: bool) -> Callable[[], int]:
    """Return a function that asks once and gives the status, 0 for none; over one connection where it ``keeps`` it."""
    kept: list[http.client.HTTPConnection] = []

    def ask() -> int:
        connection = kept.pop() if kept else http.client.HTTPConnection("127.0.0.1", port, ASK_S, (address, 0))
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0
        if keeps:
            kept.append(connection)
        else:
            connection.close()
        return answer.status

    return ask


if __name__ == "__main__":
    raise SystemExit(main())
