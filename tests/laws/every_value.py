"""Every documented value of every word of ``implementation`` is planned, or refused with its reason."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from meshwright.app.base.solving import solve_here
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.implementation import StatedImplementation
from tests.laws.law import Law
from tests.support.requests_given import TINY_CONFIG, resolved, training

DENSE = TINY_CONFIG | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096}
EXPERTS = DENSE | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
}
STATES = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "state_size": 32,
    "conv_kernel": 4,
    "expand": 2,
    "n_groups": 2,
    "num_heads": 8,
    "head_dim": 64,
    "use_bias": False,
    "use_conv_bias": True,
    "chunk_size": 64,
    "tie_word_embeddings": False,
}
MODELS = {"dense": DENSE, "experts": EXPERTS, "states": STATES}


def _words(hint: Any) -> list[str]:
    """The documented values of a word: those of its enum, or of its list's."""
    kinds = [each for kind in get_args(hint) for each in (kind, *get_args(kind))]
    return [value.value for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for value in kind]


WORDS = {
    name: words for name, hint in get_type_hints(StatedImplementation).items() if name != "profile" and (words := _words(hint))
}
_ONE = st.sampled_from([(name, word) for name, words in WORDS.items() for word in words])


def is_planned(model: str, stated: list[tuple[str, str]], search: dict[str, Any], precision: str) -> None:
    chosen = {name: [word] if name == "adapter_targets" else word for name, word in stated}
    if "adapter_targets" in chosen:
        chosen["trained"] = "adapters"
    document = training(
        model={"config": MODELS[model], "name": model},
        cluster={"catalog": "dgx-h100", "nodes": 1},
        workload={
            "kind": "training",
            "global_batch": 8,
            "seq_len": 256,
            "precision": precision,
            "implementation": chosen,
        },
        search=search | {"microbatch": [1], "pp": [1], "schedules": ["1f1b"]},
    )
    with suppress(InvalidInputError):
        _plan(document)


def _plan(document: dict[str, Any]) -> None:
    plan = solve_here(resolved(document))
    assert plan.feasible or (plan.reason is not None and plan.reason.message), "a plan, or the reason why there is none"


_PLAIN = {"space": "launchable", "tp": [2], "cp": [2], "recompute": ["none"]}

LAW = Law(
    sentence="Every documented value of every word is planned, or refused with its reason, on a model that has its subject.",
    drawn={
        "model": st.sampled_from(list(MODELS)),
        "stated": st.lists(_ONE, min_size=1, max_size=2, unique_by=lambda each: each[0]),
        "search": st.fixed_dictionaries(
            {
                "space": st.sampled_from(["launchable", "free"]),
                "tp": st.sampled_from([[1], [2]]),
                "cp": st.sampled_from([[1], [2]]),
                "recompute": st.sampled_from([["none"], ["selective"], ["full"], []]),
            }
        ),
        "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
    },
    check=is_planned,
    few=20,
    many=300,
    most=2500,
    draw_s=0.12,
    always=[
        {
            "model": "states" if name.startswith("scan") else "dense",
            "stated": [(name, word)],
            "search": _PLAIN,
            "precision": "bf16",
        }
        for name, words in WORDS.items()
        for word in words
    ],
)
