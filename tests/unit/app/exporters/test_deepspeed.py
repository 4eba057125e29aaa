"""ds_config.json, what it leaves to the script, and what DeepSpeed's parser makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.launchers.deepspeed import uniform_parts
from meshwright.costmodels.cluster.cluster import Nvme
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.memory.training_state import Offload, Optimizer, Tier
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.training.planner import plan_training
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.plans import GLOBAL_BATCH, arguments, training
from tests.unit.app.exporters.real_tools import ask
from tests.unit.solver.training.branching import small_request


def config(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    document = json.loads(export(plan, request, "deepspeed").files["ds_config.json"])
    assert isinstance(document, dict)
    return document


def said(plan: Plan, request: PlanRequest) -> str:
    return " ".join(export(plan, request, "deepspeed").inexpressible)


def test_batch_arithmetic() -> None:
    document = config(*training(dp=8, microbatch=2))
    assert document["train_batch_size"] == GLOBAL_BATCH
    assert document["train_micro_batch_size_per_gpu"] * document["gradient_accumulation_steps"] * 8 == GLOBAL_BATCH


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_zero_stages(zero_stage: int) -> None:
    assert config(*training(dp=8, zero_stage=zero_stage))["zero_optimization"]["stage"] == zero_stage


def test_precision_and_gradients() -> None:
    document = config(*training(precision=DType.FP16, gradient_dtype=DType.BF16))
    assert (document["fp16"], document["data_types"]) == ({"enabled": True}, {"grad_accum_dtype": "bf16"})
    assert "bf16" not in document
    assert not {"bf16", "fp16"} & set(config(*training(precision=DType.FP32)))


@pytest.mark.parametrize(
    ("optimizer", "name"), [(Optimizer.ADAMW, "AdamW"), (Optimizer.SGD_MOMENTUM, "SGD"), (Optimizer.MUON, "Muon")]
)
def test_optimizers_of_deepspeed_have_names(optimizer: Optimizer, name: str) -> None:
    assert config(*training(optimizer=optimizer))["optimizer"]["type"] == name


def test_eight_bit_moments_are_refused() -> None:
    with pytest.raises(ExportError, match="adamw_8bit; it has adamw, muon, sgd_momentum"):
        config(*training(optimizer=Optimizer.ADAMW_8BIT))


def test_tensor_parallelism_is_autotp_and_its_whole_embedding_is_said() -> None:
    plan = training(dp=4, tp=2)
    assert config(*plan)["tensor_parallel"]["autotp_size"] == 2
    # 128256 x 4096 parameters in bf16, half of them more than planned.
    assert "0.53 GB" in said(*plan)


def test_a_pipeline_is_left_to_the_script() -> None:
    plan = training(dp=2, pp=4, layers=[8, 8, 8, 8])
    assert config(*plan)["pipeline"]["stages"] == 4
    # Embedding and head are layers too: 9, 8, 8, 9 of them, where "uniform" gives 9, 9, 8, 8.
    assert "num_stages=4" in said(*plan)
    assert "parts [0, 9, 17, 25, 34]" in said(*plan)
    assert "parts" not in said(*training(dp=2, pp=2))


def test_uniform_parts_are_those_of_deepspeed() -> None:
    assert uniform_parts(34, 4) == (9, 9, 8, 8)
    assert uniform_parts(32, 4) == (8, 8, 8, 8)


def test_recompute_is_left_to_the_script_but_not_in_silence() -> None:
    assert "gradient_checkpointing_enable" in said(*training(recompute=(Recompute.FULL,)))
    assert "selective recompute" in said(*training(recompute=(Recompute.SELECTIVE,)))
    piped = training(pp=2, recompute=(Recompute.FULL,))
    assert config(*piped)["pipeline"]["activation_checkpoint_interval"] == 1
    assert "gradient_checkpointing_enable" not in said(*piped)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"dp": 4, "cp": 2}, "no ring context parallelism"),
        ({"dp": 4, "tp": 2, "sequence_parallel": True}, "can't split norms"),
        ({"tp": 2, "sequence_parallel": True, "tp_overlap": TpOverlap.CHUNKED}, "it cuts no products into chunks"),
        ({"dp": 2, "pp": 2, "rank_order": RankOrder.DP_OUTERMOST}, "it has pp outermost alone"),
        ({"tp": 16}, "8 key/value heads do not divide by tp 16"),
    ],
)
def test_what_deepspeed_has_not_is_refused(layout: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        export(*training(**layout), "deepspeed")


def test_the_launcher_reads_a_hostfile_on_several_nodes() -> None:
    assert "--hostfile" not in arguments(export(*training(dp=8), "deepspeed"))
    words = arguments(export(*training(dp=32), "deepspeed"))
    assert words[words.index("--num_nodes") + 1] == "4"
    assert "--hostfile" in words


@pytest.mark.slow
def test_deepspeed_accepts_the_configuration_and_means_the_same() -> None:
    plans = [
        training(dp=8, zero_stage=3, microbatch=2),
        training(dp=4, tp=2, zero_stage=1),
        training(dp=2, pp=4, zero_stage=1),
        training(dp=8, zero_stage=2, gradient_dtype=DType.BF16),
    ]
    cases = [{"config": config(*plan), "dp": 2 if flat(plan[0]).stages[1:] else None} for plan in plans]
    away = Offload(1.0, weights=1.0, gradients=1.0, optimizer_to=Tier.NVME, weights_to=Tier.NVME)
    plan, request = training(dp=8, zero_stage=3, microbatch=2)
    nodes = tuple(replace(g, node=replace(g.node, nvme=Nvme(10**13, 1e10, 1e10))) for g in request.cluster.groups)
    request = replace(request, cluster=replace(request.cluster, groups=nodes))
    for offload in (away, replace(away, optimizer_to=Tier.HOST, weights_to=Tier.HOST)):
        moved = with_fields(plan, stages=tuple(replace(stage, offload=offload) for stage in flat(plan).stages))
        cases.append({"config": config(moved, request), "dp": None})
    spoiled = {**cases[0]["config"], "gradient_accumulation_steps": 3}
    answers = ask("deepspeed", "deepspeed_config.py", [*cases, {"config": spoiled, "dp": None}])
    # AutoTP's two ranks count as if each had data of its own.
    assert [answer["batch"] for answer in answers[:4]] == [[64, 2, 4], [128, 1, 16], [64, 1, 32], [64, 1, 8]]
    assert [answer["zero_stage"] for answer in answers[:-1]] == [3, 1, 1, 2, 3, 3]
    assert [answer["tp"] for answer in answers[:-1]] == [0, 2, 0, 0, 0, 0]
    assert [answer["grad_accum_dtype"] for answer in answers[:4]] == ["fp32", "fp32", "fp32", "bf16"]
    assert [answer["offload"] for answer in answers[:-1]] == [["none"] * 2] * 4 + [["nvme"] * 2, ["cpu"] * 2]
    assert all(answer["bf16"] for answer in answers[:-1])
    assert "train_batch_size is not equal" in answers[-1]["error"]


def test_stages_of_a_model_that_branches_pass_tuples_on() -> None:
    request = small_request(1)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(plan).axes is not None and flat(plan).axes.pp == 2
    assert "branches: give PipelineModule the layers in the order [" in said(plan, request)
    assert "branches" not in said(*training(dp=4, pp=2))
