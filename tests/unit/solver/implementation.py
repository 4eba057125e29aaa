"""Shared by the tests of implementation and others: SMALL, request_of."""

from __future__ import annotations

from typing import Any

from meshwright.solver.problem.request import TrainingRequest
from tests.support.requests_given import resolved, training

SMALL = {"dp": [2], "tp": [2], "pp": [2], "cp": [1], "microbatch": [1], "recompute": ["none"], "zero_stages": [1], "risk": 0.5}


def request_of(
    implementation: dict[str, Any] | None, gradient_dtype: str = "fp32", matmul: str = "working", **search: Any
) -> TrainingRequest:
    sizes = {"kind": "training", "global_batch": 32, "seq_len": 4096}
    workload: dict[str, Any] = {**sizes, "gradient_dtype": gradient_dtype, "matmul": matmul}
    if implementation is not None:
        workload |= {"implementation": implementation}
    request = resolved(training(workload=workload, search=SMALL | search))
    assert isinstance(request, TrainingRequest)
    return request
