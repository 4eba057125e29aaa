"""Planned layouts of a tiny model, trained by the exported PyTorch program on as many processes as each has ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.app.launching.exporters import export
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from tests.unit.app.exporters.plans import cluster
from tests.unit.app.exporters.real_tools import ask

TINY = {
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "max_position_embeddings": 512,
}
LEARNING_RATE = 1e-3
"""So large that a wrong update shows in the next step's loss."""
DEVICES = 4
_NONE, _FULL = (Recompute.NONE,), (Recompute.FULL,)

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp": (4,), "tp": (1,), "pp": (1,), "zero_stages": (0,), "recompute": _NONE},
    {"dp": (4,), "tp": (1,), "pp": (1,), "zero_stages": (2,), "recompute": _FULL},
    {"dp": (4,), "tp": (1,), "pp": (1,), "zero_stages": (3,), "recompute": _FULL},
    {"dp": (4,), "tp": (1,), "pp": (1,), "zero_stages": (3,), "shard_ranks": (2,), "recompute": _NONE},
    {"dp": (2,), "tp": (2,), "pp": (1,), "zero_stages": (3,), "recompute": _FULL},
    {"dp": (1,), "tp": (2,), "pp": (2,), "schedules": (Schedule.ONE_F_ONE_B,), "recompute": _FULL},
    {"dp": (2,), "tp": (1,), "pp": (2,), "schedules": (Schedule.GPIPE,), "zero_stages": (0,), "recompute": _NONE},
    {"dp": (2,), "tp": (1,), "pp": (2,), "schedules": (Schedule.ONE_F_ONE_B,), "zero_stages": (3,), "recompute": _FULL},
    {"dp": (2,), "tp": (1,), "pp": (2,), "schedules": (Schedule.INTERLEAVED,), "zero_stages": (0,), "recompute": _NONE},
    {"dp": (2,), "tp": (1,), "pp": (2,), "schedules": (Schedule.ZB_V,), "zero_stages": (2,), "recompute": _NONE},
    {"dp": (2,), "tp": (1,), "pp": (2,), "schedules": (Schedule.DUALPIPE_V,), "zero_stages": (0,), "recompute": _NONE},
)
"""Restrictions of a search, a layout each: every axis, place of state and schedule that the program has."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest relative differences of two steps from one process: of the loss, of a gradient's norm and its product with
    a random tensor."""

    loss: float
    gradients: float
    later_gradients: float


def planned(devices: int = DEVICES, **search: Any) -> tuple[Plan, TrainingRequest]:
    """The planner's plan of the tiny model under restrictions of the search."""
    graph = read_huggingface_config(TINY, name="tiny")
    workload = TrainingWorkload("training", global_batch=16, seq_len=32, precision=DType.FP32)
    wanted = Search(launcher=Launcher.PYTORCH, space=Space.LAUNCHABLE, **search)
    request = TrainingRequest(graph, cluster(1, devices), workload, search=wanted)
    plan = solve_here(request, ignore_progress)
    if not plan.feasible:
        raise ValueError(f"no plan: {plan.reason}")
    return plan, request


def trained(given: Sequence[tuple[Plan, TrainingRequest]]) -> list[Difference]:
    """The differences of each plan's training from that of one process; raises ValueError where a process fails."""
    exports = [export(*each, "pytorch") for each in given]
    plans = [json.loads(each.files["plan.json"]) | {"learning_rate": LEARNING_RATE} for each in exports]
    answers = ask("torch", "pytorch_ranks.py", {"script": exports[0].files["train.py"], "plans": plans})
    return [_difference(answer["one"], answer["ranks"]) for answer in answers]


def _difference(one: Any, ranks: Any) -> Difference:
    if isinstance(ranks, dict):
        raise ValueError(ranks["error"])
    losses = [abs(theirs["loss"] / mine["loss"] - 1) for mine, theirs in zip(one, ranks, strict=True)]
    first, later = (_farthest(mine["gradients"], theirs["gradients"]) for mine, theirs in zip(one, ranks, strict=True))
    return Difference(max(losses), first, later)


def _farthest(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    if set(one) != set(other):
        raise ValueError(f"other parameters: {sorted(set(one) ^ set(other))}")
    return max(abs(a - b) / one[name][0] for name in one for a, b in zip(one[name], other[name], strict=True))
