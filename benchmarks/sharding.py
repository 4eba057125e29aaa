"""Measure the sharding engine on the contest instances: ``python -m benchmarks.sharding --time-limit 60``.

``--work-limit 4e9`` in place of a time limit gives the same answers on any machine, however busy: about 30 s of one core.
Each solve is a process of its own, timed from its start to its end, on at most two cores. The answer is checked and
priced here from the JSON file, by code that shares nothing with the solver. Prints one Markdown table row per solve.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sharding_variants import FORBIDDEN, VARIANTS, Document

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "sharding"
CORES = 2

_CHILD = """
import json, sys
from meshwright.app.cli.shard_command import run_shard
path, option, limit, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
limits = {"time_limit_s": None, "work_limit": None} | {option: limit}
print(json.dumps(run_shard(path, **limits, seed=seed)))
"""


def evaluate(document: Document, solution: list[int]) -> tuple[int, int]:
    """Cost and peak memory of a solution, straight from the definition; raises ValueError for a forbidden choice."""
    problem = document["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    entries = [costs[s] for costs, s in zip(nodes["costs"], solution, strict=True)]
    for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True):
        entries.append(table[solution[u] * len(nodes["costs"][v]) + solution[v]])
    if max(entries) >= FORBIDDEN:
        raise ValueError("the solution takes a forbidden entry")
    last = max((end for _, end in nodes["intervals"]), default=0)
    change = [0] * (last + 1)
    for (start, end), usages, s in zip(nodes["intervals"], nodes["usages"], solution, strict=True):
        if start < end:
            change[start] += usages[s]
            change[end] -= usages[s]
    peak = memory = 0
    for step in change:
        memory += step
        peak = max(peak, memory)
    return sum(entries), peak


def best_known() -> dict[str, float]:
    """Best known cost of each instance."""
    with (DATA / "best_known.csv").open(newline="") as file:
        return {row["instance"]: float(row["best_cost"]) for row in csv.DictReader(file)}


def measure(document: Document, *, option: str, limit: float, seed: int) -> dict[str, Any]:
    """Solve in a child process; its answer with our own cost, and the seconds and CPU seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        path.write_text(json.dumps(document))
        before, started = os.times(), time.monotonic()
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), option, str(limit), str(seed)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        seconds, after = time.monotonic() - started, os.times()
    answer: dict[str, Any] = json.loads(child.stdout)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    answer |= {"wall_s": seconds, "cpu_s": cpu}
    if answer["solution"] is not None:
        cost, peak = evaluate(document, answer["solution"])
        usage_limit = document["problem"]["usage_limit"]
        if cost != answer["cost"] or (usage_limit is not None and peak > usage_limit):
            raise ValueError(f"the solver says {answer['cost']}, the evaluator {cost}, peak {peak} of {usage_limit}")
    return answer


def main() -> None:
    """Run the chosen instances and variants and print the table and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per solve, whole process")
    parser.add_argument("--work-limit", type=float, help="units of work per solve, in place of the time limit")
    parser.add_argument("--instances", default="GBPAMSKN", help="letters of the instances")
    parser.add_argument("--variants", nargs="*", default=["original"], choices=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no instances at {DATA}: this benchmark needs the public contest data, which is not shipped")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    option, limit = "time_limit_s", options.time_limit
    if options.work_limit is not None:
        option, limit = "work_limit", options.work_limit
    known = best_known()
    print("| instance | variant | cost / best known | bound / best known | gap | status | wall s | CPU s | load |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    ratios = []
    for letter in options.instances:
        document = json.loads(gzip.decompress((DATA / f"asplos-2025-iopddl-{letter}.json.gz").read_bytes()))
        for variant in options.variants:
            varied = VARIANTS[variant](document, random.Random(options.seed))
            answer = measure(varied, option=option, limit=limit, seed=options.seed)
            print(_row(letter, variant, answer, known[letter]), flush=True)
            if answer["cost"] is not None:
                ratios.append(answer["cost"] / known[letter])
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"\n{len(ratios)} feasible; geometric mean {mean:.4f}, worst {max(ratios):.4f}")


def _row(letter: str, variant: str, answer: dict[str, Any], known: float) -> str:
    cost = "none" if answer["cost"] is None else f"{answer['cost'] / known:.5f}"
    bound = "none" if answer["bound"] is None else f"{answer['bound'] / known:.5f}"
    gap = "none" if answer["gap"] is None else f"{answer['gap']:.2%}"
    load = os.getloadavg()[0]
    return (
        f"| {letter} | {variant} | {cost} | {bound} | {gap} | {answer['status']} "
        f"| {answer['wall_s']:.1f} | {answer['cpu_s']:.1f} | {load:.1f} |"
    )


if __name__ == "__main__":
    main()
