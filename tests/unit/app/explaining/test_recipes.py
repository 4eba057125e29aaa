"""Published launch commands are read as the plans that were written by hand beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.serving import degrees
from meshwright.app.launching.parts.stated import StatedServer, StatedTraining
from meshwright.app.models.catalog.copies import copy_of
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of
from meshwright.app.service.explaining.training_plan import broken_rules, microbatch_of, world_of
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.solver.problem.request import ServingRequest, TrainingRequest
from tests.unit.app.explaining.resolving import resolve

RECIPES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "recipes.yaml").read_text(encoding="utf-8"))

SC21 = """
export PARAMS=" --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size {mbs} \\
    --global-batch-size {gbs} --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --DDP-impl local \\
    --merge-file $MERGES --seq-length 2048 --max-position-embeddings 2048 --fp16 --activations-checkpoint-method uniform {each}"
srun python -u pretrain_gpt.py ${{PARAMS}}
"""


def command_of(recipe: dict[str, Any]) -> str:
    if "command" in recipe:
        return str(recipe["command"])
    sizes = recipe["sc21"]
    each = f"--num-layers-per-virtual-pipeline-stage {sizes['each']}" if "each" in sizes else ""
    return SC21.format(**{**sizes, "each": each})


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["source"])
def test_a_recipe_is_the_plan_written_by_hand(recipe: dict[str, Any]) -> None:
    serves = "replicas" in recipe["plan"]
    options = {"isl": "1000", "osl": "100", "concurrency": "8"} if serves else {}
    options |= {"seq": str(recipe["seq"])} if "seq" in recipe else {}
    line = OneLine(recipe.get("model", ""), gpus=recipe.get("gpus", "8xH200"), **options)
    asked = asked_of(command_of(recipe), line, resolve, LaunchFiles(recipe.get("files", {})))
    assert not [flag.name for flag in asked.stated.given if flag.standing is Standing.UNKNOWN]
    if isinstance(asked.stated, StatedServer):
        assert isinstance(asked.request, ServingRequest)
        read = served(asked.request, asked.stated)
    else:
        assert isinstance(asked.request, TrainingRequest)
        assert broken_rules(asked.request, asked.stated) == ()
        read = trained(asked.request, asked.stated)
    assert read == read | recipe["plan"]
    unsaid = {"ep": 1, "attention_dp": 1, "pp": 1, "cp": 1, "chunks": 1, "on_host": [0.0, 0.0]}
    assert {name: read[name] for name in unsaid if name in read and name not in recipe["plan"]}.items() <= unsaid.items()


def served(request: ServingRequest, stated: StatedServer) -> dict[str, Any]:
    found = degrees(stated.flags, request.search.engine, experts=EXPERTS in request.model.dims)
    known = copy_of(request.model.name)
    return {
        "model": request.model.name if known is None else known.name,
        "precision": request.workload.precision.value,
        "replicas": found.replicas,
        "tp": found.tp,
        "pp": found.pp,
        "ep": found.ep,
        "attention_dp": found.attention_dp,
        "step_tokens": stated.flags.step_tokens,
        "sequences": stated.flags.sequences,
        "memory_share": stated.flags.memory_share,
        "draft_tokens": stated.flags.draft_tokens,
    }


def trained(request: TrainingRequest, stated: StatedTraining) -> dict[str, Any]:
    size = microbatch_of(request, stated)
    dp = world_of(request, stated) // (stated.tp * stated.pp * stated.cp)
    return {
        "family": None if stated.config is None else stated.config["model_type"],
        "precision": request.workload.precision.value,
        "matmul": request.workload.matmul.value,
        "dp": dp,
        "tp": stated.tp,
        "pp": stated.pp,
        "cp": stated.cp,
        "ep": stated.ep,
        "chunks": stated.chunks,
        "microbatch": [size, request.workload.global_batch // (dp * size)],
        "zero": stated.zero_stage,
        "recompute": stated.recompute.value,
        "on_host": [stated.offload.optimizer, stated.offload.weights],
    }


def test_there_are_forty_recipes() -> None:
    assert len(RECIPES) >= 40
