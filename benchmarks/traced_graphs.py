"""Sharding of whole traced models: `python -m benchmarks.traced_graphs` prints the table of docs/benchmarks-sharding.md.

Traces of transformers' models at their own depth (tests/unit/app/importers/traced_models.py) on a mesh of 8 x 8 H100.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

from meshwright.app.models import catalog
from meshwright.app.models.traced.model import read_traced_graph
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.resolve import resolve_request
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import shard_model
from tests.unit.app.importers.traced_models import DEEP, TRACES


def main() -> None:
    shard("warm-up", catalog.model("llama-3.1-8b").name, 4096, quiet=True)
    print("| model | calls | operators | classes | processor time | step | status |")
    print("|---|---|---|---|---|---|---|")
    for name in DEEP:
        document = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
        traced = read_traced_graph(document)
        shard(name, f"{name}.json.gz", traced.seq_len or 1, calls=len(document["operators"]))
    shard("llama-3.1-8b, template", "llama-3.1-8b", 4096)


def shard(name: str, source: str, seq_len: int, *, calls: int = 0, quiet: bool = False) -> None:
    started_s = time.process_time()
    request = resolve_request(
        {
            "schema": "meshwright.request/1",
            "model": {"graph": source} if source.endswith(".gz") else {"catalog": source},
            "cluster": {"catalog": "dgx-h100", "nodes": 8},
            "workload": {"kind": "training", "global_batch": 128, "seq_len": seq_len},
        },
        files=FilesBeside(Path(TRACES)),
    )
    mesh = device_mesh(request.cluster, {"data": 8, "tensor": 8})
    found = shard_model(request, mesh, ties=Ties.EQUAL_BLOCKS, stop=NoLimit(), seed=0)
    spent_s = time.process_time() - started_s
    if quiet or found.best is None or found.costs is None or found.best.step_s is None:
        return
    sizes = f"{calls or '-'} | {len(found.costs.graph.nodes)} | {len(found.costs.folding.members)}"
    print(f"| {name} | {sizes} | {spent_s:.1f} s | {found.best.step_s * 1e3:.1f} ms | {found.status.value} |", flush=True)


if __name__ == "__main__":
    main()
