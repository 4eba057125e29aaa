"""The time of a re-plan after nodes are lost: ``python -m benchmarks.replan [--models N] [--workers N ...] [--solves N]``.

For each number of workers, from an empty SQLite database: registers N models and 4 clusters of 2 nodes, stores the plans of
5 workloads of every model on every cluster (1,000 for 50 models), takes one node from every cluster, and has all plans that
became stale made again by the service's own workers. The solver is the real one; the models are
Llamas of 4 to 8 narrow layers, so that a solve takes a few tenths of a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service_process import ServiceProcess, running_process
from meshwright.app.base.settings import Settings

CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200")
NODES = 2
GLOBAL_BATCHES = (16, 32, 64, 128, 256)
SEQ_LEN = 2048
HEAD_SIZE = 64
LOOK_EVERY_S = 0.2
PROGRESS_EVERY_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50, help="distinct models; 20 plans rest on each")
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="one measurement for each number")
    parser.add_argument("--solves", type=int, default=Settings.max_solves, help="solves at once of each worker")
    given = parser.parse_args()
    took: dict[int, float] = {}
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as folder:
            options = {"MESHWRIGHT_MAX_SOLVES": str(given.solves), "MESHWRIGHT_MAX_WAITING_JOBS": "100000"}
            with running_process(Path(folder), "--workers", str(workers), **options) as service:
                took[workers] = measure(service, given.models, workers)
    first = given.workers[0]
    for workers in given.workers[1:]:
        print(f"{first} -> {workers} workers: {took[first] / took[workers]:.2f} times as fast")
    return 0


def measure(service: ServiceProcess, models: int, workers: int) -> float:
    """Store the plans, lose the nodes, plan again; print both times and what became of the plans. Seconds of the re-plan."""
    with httpx.Client(base_url=service.url, timeout=120) as client:
        for name in CLUSTERS:
            put(client, f"/v1/clusters/{name}", {"catalog": name, "nodes": NODES})
        for number in range(models):
            put(client, f"/v1/models/model-{number}", {"config": llama(number)})
        began_s = time.perf_counter()
        asked = 0
        for request in requests(models):
            client.post("/v1/plans", json=request).raise_for_status()
            asked += 1
        while any((waiting := queue(client))[state] for state in ("queued", "running")):
            print(f"  {waiting['queued']} of {asked} plans wait after {time.perf_counter() - began_s:.0f} s", flush=True)
            time.sleep(PROGRESS_EVERY_S)
        print(f"{workers} workers: {asked} plans made in {time.perf_counter() - began_s:.0f} s (load {load()})", flush=True)
        began_s = time.perf_counter()
        batches = [lose_node(client, name) for name in CLUSTERS]
        outcomes: Counter[str] = Counter()
        for batch in batches:
            outcomes.update(finished(client, batch))
        took_s = time.perf_counter() - began_s
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()) if count)
    print(f"{workers} workers: {outcomes.total()} plans made again in {took_s:.0f} s: {said} (load {load()})", flush=True)
    return took_s


def requests(models: int) -> Iterator[dict[str, Any]]:
    """Every workload of every model on every cluster."""
    for number in range(models):
        for cluster in CLUSTERS:
            for global_batch in GLOBAL_BATCHES:
                yield {
                    "schema": "meshwright.request/1",
                    "model": {"name": f"model-{number}"},
                    "cluster": {"name": cluster},
                    "workload": {"kind": "training", "global_batch": global_batch, "seq_len": SEQ_LEN},
                }


def llama(number: int) -> dict[str, Any]:
    """A Hugging Face config of a small Llama; no two numbers below 60 give the same."""
    heads, layers = 8 + 4 * (number // 5), 4 + number % 5
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": heads * HEAD_SIZE,
        "intermediate_size": 4 * heads * HEAD_SIZE,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 32_000,
        "hidden_act": "silu",
        "max_position_embeddings": SEQ_LEN,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }


def put(client: httpx.Client, path: str, document: dict[str, Any]) -> dict[str, Any]:
    answer = client.put(path, json=document)
    answer.raise_for_status()
    body: dict[str, Any] = answer.json()
    return body


def lose_node(client: httpx.Client, cluster: str) -> str:
    """Register the cluster with a node less: where the batch is that this starts."""
    made = put(client, f"/v1/clusters/{cluster}?replan=start", {"catalog": cluster, "nodes": NODES - 1})
    return str(made["replan"])


def finished(client: httpx.Client, batch: str) -> dict[str, int]:
    """Wait for a batch: how many of its plans have each outcome."""
    while True:
        document = client.get(batch).raise_for_status().json()
        if document["status"] != "running":
            outcomes: dict[str, int] = document["outcomes"]
            return outcomes
        time.sleep(LOOK_EVERY_S)


def queue(client: httpx.Client) -> dict[str, int]:
    """Return the number of jobs that are queued and running."""
    state: dict[str, int] = client.get("/readyz").raise_for_status().json()["queue"]
    return state


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
