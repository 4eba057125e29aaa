"""More nodes, more memory and faster devices or links are never slower, and never make a plan impossible."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.resolve import request_document
from meshwright.solver.answer.plan import Plan
from tests.laws.every_value import DENSE, EXPERTS, STATES
from tests.laws.law import Law
from tests.support.requests_given import resolved, training
from tests.support.small_requests import TO_THE_END

MODELS = {
    "dense": DENSE | {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16},
    "experts": EXPERTS | {"num_hidden_layers": 6, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8},
    "states": STATES | {"num_hidden_layers": 6, "hidden_size": 512, "num_heads": 16},
}
NODES = {"h100": "dgx-h100", "a100": "dgx-a100-80gb"}
MORE = ("nodes", "memory_bytes", "memory_bytes_per_s", "intra", "inter")
TIE = 1e-9


@lru_cache(maxsize=64)
def _plan(model: str, node: str, nodes: int, batch: int, seq_len: int, share: float, more: str, factor: float) -> Plan:
    asked = resolved(
        training(
            model={"config": MODELS[model], "name": model},
            cluster={"catalog": NODES[node], "nodes": nodes},
            workload={"kind": "training", "global_batch": batch, "seq_len": seq_len, "precision": "bf16", "optimizer": "adamw"},
            search=TO_THE_END,
        )
    )
    document: dict[str, Any] = copy.deepcopy(request_document(asked))
    described = document["cluster"]["groups"][0]["node"]
    # Little memory, so that some requests have no plan.
    described["device"]["memory_bytes"] = round(share * described["device"]["memory_bytes"])
    if more in ("intra", "inter"):
        described[more]["bytes_per_s"] *= factor
    elif more != "nodes":
        described["device"][more] = type(described["device"][more])(factor * described["device"][more])
    return solve_here(resolved(document))


def is_no_slower(
    model: str, node: str, nodes: int, others: int, batch: int, seq_len: int, share: float, more: str, factor: float
) -> None:
    less = _plan(model, node, nodes, batch, seq_len, share, more, 1.0)
    most = _plan(model, node, nodes + others if more == "nodes" else nodes, batch, seq_len, share, more, factor)
    if not less.feasible:
        return
    assert most.feasible, f"{more} made it impossible: {most.reason}"
    assert less.predicted is not None and most.predicted is not None
    assert less.predicted.step_time_s is not None and most.predicted.step_time_s is not None
    assert most.predicted.step_time_s <= less.predicted.step_time_s * (1 + TIE)


LAW = Law(
    sentence="More nodes, more memory and a faster link are never slower, and never make a plan impossible.",
    drawn={
        "model": st.sampled_from(list(MODELS)),
        "node": st.sampled_from(list(NODES)),
        "nodes": st.integers(1, 31),
        "others": st.integers(1, 3),
        "batch": st.sampled_from([7, 12, 32, 60, 128]),
        "seq_len": st.sampled_from([512, 2048]),
        "share": st.sampled_from([1.0, 0.1, 0.03]),
        "more": st.sampled_from(MORE),
        "factor": st.floats(1.01, 3.0),
    },
    check=is_no_slower,
    few=1,
    many=12,
    most=100,
    draw_s=3.4,
)
