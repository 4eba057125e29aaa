"""Requests that tests start from, and ways to change them."""

from __future__ import annotations

import copy
from typing import Any

from meshwright.app.requests.examples import SERVING_REQUEST, TRAINING_REQUEST
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.solver.problem.request import PlanRequest

TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
}
"""The config.json of a model that is small and can be served."""


def training(**changes: Any) -> dict[str, Any]:
    """A training request document, top-level fields replaced."""
    return copy.deepcopy(TRAINING_REQUEST) | changes


def serving(**changes: Any) -> dict[str, Any]:
    """A serving request document, top-level fields replaced."""
    return copy.deepcopy(SERVING_REQUEST) | changes


def resolved(document: dict[str, Any] | None = None) -> PlanRequest:
    """The request of a document, a training one unless given."""
    return resolve_request(document or training(), files=NoFiles())


def tiny_graph() -> dict[str, Any]:
    """A model graph document of one block with two operators, repeated."""
    tensor = {"x": ["batch", "seq", "hidden"], "y": ["batch", "seq", "ffn"], "z": ["batch", "seq", "hidden"]}

    def matmul(name: str, source: str, target: str, weight: list[str]) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "matmul",
            "inputs": [{"name": source, "dims": tensor[source]}],
            "outputs": [{"name": target, "dims": tensor[target]}],
            "weights": [{"name": "w", "dims": weight}],
        }

    up, down = matmul("up", "x", "y", ["hidden", "ffn"]), matmul("down", "y", "z", ["ffn", "hidden"])
    return {
        "schema": "meshwright.model-graph/1",
        "name": "tiny",
        "dims": {"hidden": 64, "ffn": 256},
        "blocks": [{"name": "mlp", "operators": [up, down], "output": "z"}],
        "chain": [{"block": "mlp", "repeat": 4}],
    }
