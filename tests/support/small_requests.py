"""Requests of small models to draw, whose plans take a part of a second each."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.laws.every_value import DENSE, EXPERTS, STATES
from tests.support.requests_given import serving, training

TO_THE_END = {"time_limit_s": 3600.0}
"""The limit of searches that are compared: a machine that is busy must not end one of two early."""

MODELS = {"dense": DENSE, "experts": EXPERTS, "states": STATES}

TRAINED = st.fixed_dictionaries(
    {
        "model": st.sampled_from(list(MODELS)),
        "nodes": st.sampled_from([1, 2]),
        "global_batch": st.sampled_from([8, 12, 16]),
        "seq_len": st.sampled_from([256, 512]),
        "precision": st.sampled_from(["bf16", "fp16"]),
        "objective": st.sampled_from(["step_time", "throughput", "devices", "cost", "energy"]),
        "space": st.sampled_from(["launchable", "free"]),
    }
)
"""What `trained` makes a document of."""

SERVED = st.fixed_dictionaries(
    {
        "model": st.sampled_from(list(MODELS)),
        "arrivals": st.sampled_from(
            [
                {"process": "poisson", "requests_per_s": 3.0},
                {"process": "poisson", "requests_per_s": 0.5},
                {"process": "closed", "concurrency": 4},
            ]
        ),
        "prompt_tokens": st.sampled_from([{"fixed": 200}, {"mean": 100, "p95": 300}]),
        "output_tokens": st.sampled_from([{"fixed": 20}, {"mean": 10, "p95": 30}]),
        "objective": st.sampled_from(["throughput", "devices", "cost", "energy"]),
        "slo": st.sampled_from([{}, {"p95_ttft_ms": 1000, "p95_tpot_ms": 40}]),
    }
)
"""What `served` makes a document of."""


def trained(asked: dict[str, Any], **search: Any) -> dict[str, Any]:
    """Return the document of a training request; restrictions of its search take the place of narrow ones."""
    narrow = {"tp": [1, 2], "pp": [1, 2], "microbatch": [1, 2], "cp": [1], "schedules": ["1f1b"], "recompute": ["none", "full"]}
    work = {name: asked[name] for name in ("global_batch", "seq_len", "precision")}
    return training(
        model={"config": MODELS[asked["model"]], "name": asked["model"]},
        cluster={"catalog": "dgx-h100", "nodes": asked["nodes"]},
        workload={"kind": "training"} | work,
        objective=asked["objective"],
        search={"space": asked["space"]} | TO_THE_END | narrow | search,
    )


def served(asked: dict[str, Any], **search: Any) -> dict[str, Any]:
    """Return the document of a serving request; restrictions of its search take the place of narrow ones."""
    work = {name: asked[name] for name in ("arrivals", "prompt_tokens", "output_tokens")}
    return serving(
        model={"config": MODELS[asked["model"]], "name": asked["model"]},
        workload={"kind": "serving", "precision": "bf16"} | work,
        slo=asked["slo"],
        objective=asked["objective"],
        search={"tp": [1, 2], "pp": [1]} | TO_THE_END | search,
    )


DOCUMENTS = TRAINED.map(trained) | SERVED.map(served)
"""Documents of small requests of both kinds."""
