"""Requests that OpenAPI and the documentation show; a test sends every one of them."""

from __future__ import annotations

from typing import Any

from meshwright.solver.problem.request import REQUEST_SCHEMA

TRAINING_REQUEST: dict[str, Any] = {
    "schema": REQUEST_SCHEMA,
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {"kind": "training", "global_batch": 128, "seq_len": 8192},
}

SERVING_REQUEST: dict[str, Any] = {
    "schema": REQUEST_SCHEMA,
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {
        "kind": "serving",
        "arrivals": {"process": "poisson", "requests_per_s": 2.0},
        "prompt_tokens": {"fixed": 2000},
        "output_tokens": {"mean": 300, "p95": 700},
        "precision": "bf16",
    },
    "slo": {"p95_ttft_ms": 1000, "p95_tpot_ms": 40},
    "objective": "devices",
}

DOCUMENTS_REQUEST: dict[str, Any] = {
    "schema": REQUEST_SCHEMA,
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {
        "kind": "training",
        "global_batch": 64,
        "seq_len": 16384,
        "lengths": {"tokens": [200, 1000, 6000], "counts": [700, 250, 50]},
    },
    "search": {"launcher": "trl"},
}

INFEASIBLE_REQUEST: dict[str, Any] = {
    "schema": REQUEST_SCHEMA,
    "model": {"catalog": "llama-3.1-405b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {"kind": "training", "global_batch": 8, "seq_len": 4096},
}

REQUEST_EXAMPLES: dict[str, Any] = {
    "training": {"summary": "Train Llama-3.1-8B on eight H100", "value": TRAINING_REQUEST},
    "documents": {"summary": "Train it on sequences that are packed of documents", "value": DOCUMENTS_REQUEST},
    "serving": {"summary": "Serve Llama-3.1-8B on as few H100 as meet the targets", "value": SERVING_REQUEST},
    "infeasible": {"summary": "A model that does not fit: the plan says why", "value": INFEASIBLE_REQUEST},
}
