"""CPU seconds to plan serving requests, workers that do both and pools of prefill and decode workers searched.

Run from the root of the repository: python -m benchmarks.serving_speed [request file ...]
Prints a table; the first plan of a process also compiles the simulator, so each request is planned twice and the second counts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from meshwright.app.requests.files import read_request
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress

REQUESTS = (
    "examples/qwen3-32b-fp8-pools-h200.yaml",
    "benchmarks/requests/deepseek-v3-fp8-pools-b200.yaml",
    "benchmarks/requests/qwen3-32b-fp8-goodput-h200.yaml",
)


def main() -> None:
    """Print a line for each request."""
    print("| request | CPU s | candidates | simulations | answer |\n| --- | --- | --- | --- | --- |")
    for path in sys.argv[1:] or REQUESTS:
        request, name = read_request(path), Path(path).stem
        for _ in range(2):
            began_s = time.process_time()
            until_s = began_s + request.search.time_limit_s
            answer = solve(request, stop=lambda limit_s=until_s: time.process_time() > limit_s, progress=ignore_progress)
            spent_s = time.process_time() - began_s
        search = answer.search
        print(f"| `{name}` | {spent_s:.1f} | {search.candidates:,} | {search.evaluated:,} | {_described(answer)} |", flush=True)


def _described(answer: Plan) -> str:
    if answer.reason is not None:
        return answer.reason.message
    match answer.layout:
        case Pools() as pools:
            workers = f"{pools.prefill_workers.count} prefill and {pools.decode_workers.count} decode workers"
        case Replicas() as replicas:
            workers = f"{replicas.workers.count} workers"
        case _:
            raise AssertionError("no request of the benchmark allows another form")
    return f"{workers} on {answer.devices} devices, {answer.certificate.status.value}"


if __name__ == "__main__":
    main()
