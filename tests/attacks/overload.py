"""Shared by the tests of overload and others: large_request."""

from __future__ import annotations

import copy
from typing import Any

from meshwright.app.base.records import to_document
from meshwright.app.models import catalog
from meshwright.solver.problem.graph import ModelGraph


def large_request(n_blocks: int) -> dict[str, Any]:
    """A valid request whose model has so many blocks, all unlike by name."""
    graph = to_document(ModelGraph, catalog.model("llama-3.1-8b"))
    first, layer, last = graph["blocks"]
    layers = [copy.deepcopy(layer) | {"name": f"layer{i}"} for i in range(n_blocks)]
    graph["blocks"] = [first, *layers, last]
    graph["chain"] = [{"block": block["name"], "repeat": 1} for block in graph["blocks"]]
    return {
        "schema": "meshwright.request/1",
        "model": {"graph": graph},
        "cluster": {"catalog": "dgx-h100", "nodes": 1},
        "workload": {"kind": "training", "global_batch": 8, "seq_len": 128},
    }
