"""Prints what advice random requests without a plan get: how many get some, whether it is reached when run, and what it takes.

Run from the root of the repository: python -m benchmarks.advice [FIRST LAST]    (seeds; figures of docs/serving.md)
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

from meshwright.app.base.solving import SearchLimits
from meshwright.app.requests.files import given_request
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine, Task
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.solver.api import solve
from meshwright.solver.control import Progress, ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest

SEEDS = range(20)
"""Some ten seconds each, with all changes run: name other seeds for more."""
MODELS = ("llama-3.1-8b", "qwen3-8b", "mistral-7b", "qwen3-14b")
DEVICES = ("H100", "2xH100", "A100", "2xA100")


def random_request(seed: int) -> PlanRequest:
    """Return a request of seed's kind, serving or training, that asks more than its devices have more often than not."""
    draw = random.Random(seed)
    if seed % 2:
        line = OneLine(
            draw.choice(MODELS),
            gpus=draw.choice(DEVICES),
            task=Task.SERVE,
            isl=draw.choice(("512", "2k", "4k")),
            osl=draw.choice(("64", "256")),
            rate=draw.choice(("3", "6", "12")),
            ttft_p95=draw.choice(("300ms", "600ms", "2s")),
            tpot_p95=draw.choice(("8ms", "20ms", "40ms")),
        )
        document = request_of_line(line)
    else:
        line = OneLine(
            draw.choice(MODELS),
            gpus=draw.choice(DEVICES),
            task=Task.TRAIN,
            batch=draw.choice(("32", "128")),
            seq=draw.choice(("2k", "8k")),
        )
        document = request_of_line(line)
        if draw.random() < 0.4:
            document["slo"] = {"min_tokens_per_s": draw.choice((5e4, 2e5))}
    return given_request(document, files=NoFiles())


@dataclass(slots=True)
class Figures:
    """Counts over requests without a plan, and CPU seconds of their searches and of advice."""

    requests: int = 0
    advised: int = 0
    told_why: int = 0
    changes: int = 0
    reached: int = 0
    search_s: float = 0.0
    advice_s: float = 0.0


def measure(seed: int, figures: Figures) -> None:
    """Add what one request gets, with all its changes run; nothing of one that has a plan."""
    request = random_request(seed)
    began_s, ended_s = time.process_time(), [0.0]

    def note(progress: Progress) -> None:
        ended_s[0] = time.process_time()

    plan = solve(request, stop=SearchLimits.of(request), progress=note)
    if plan.feasible or plan.reason is None or not plan.is_decided:
        return
    searched_s = max(ended_s[0] - began_s, 0.0)
    figures.requests += 1
    figures.search_s += searched_s
    figures.advice_s += time.process_time() - began_s - searched_s
    figures.advised += bool(plan.suggestions)
    figures.told_why += not plan.suggestions and bool(plan.reason.remedies)
    for suggestion in plan.suggestions:
        document = json.loads(json.dumps(request_document(request)))
        for path, value in suggestion.set.items():
            put(document, path, json.loads(value))
        found = solve(resolve_request(document, files=NoFiles()), stop=never_stop, progress=ignore_progress)
        objective = found.certificate.objective
        figures.changes += 1
        is_reached = objective is not None and objective <= suggestion.objective * (1 + 1e-9)
        figures.reached += is_reached
        if not is_reached:
            print(f"seed {seed}: {suggestion.change} reaches {objective}, not {suggestion.objective}")
    print(f"seed {seed}: {plan.reason.constraint}: {'; '.join(plan.reason.remedies)}", flush=True)


def put(document: Any, path: str, value: Any) -> None:
    """Set a field of a document by its dotted path."""
    *steps, last = path.split(".")
    for step in steps:
        document = document[int(step)] if step.isdigit() else document[step]
    document[last] = value


def main() -> None:
    """Measure the seeds that are given, or all."""
    figures = Figures()
    for seed in range(*map(int, sys.argv[1:3])) if len(sys.argv) > 2 else SEEDS:
        measure(seed, figures)
    print(figures)
    print(f"advice takes {figures.advice_s / max(figures.search_s, 1e-9):.1f} times the search")


if __name__ == "__main__":
    main()
