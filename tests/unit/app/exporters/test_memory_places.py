"""Where launchers say that state lies in host memory, or within groups of ranks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.app.launching.exporters import export
from meshwright.costmodels.cluster.cluster import Nvme
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.memory.training_state import Offload, Optimizer, Tier
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.plans import flags, training


def placed(
    plan: Plan, request: PlanRequest, *, offload: Offload | None = None, shards: int | None = None
) -> tuple[Plan, PlanRequest]:
    """The plan with its state elsewhere."""
    stages = tuple(replace(stage, offload=offload or stage.offload, shard_ranks=shards) for stage in flat(plan).stages)
    return with_fields(plan, stages=stages), request


def zero_optimization(plan: Plan, request: PlanRequest) -> dict[str, object]:
    document = json.loads(export(plan, request, "deepspeed").files["ds_config.json"])
    found = document["zero_optimization"]
    assert isinstance(found, dict)
    return found


def test_megatron_takes_a_share_of_the_distributed_optimizer() -> None:
    given = flags(export(*placed(*training(dp=8, zero_stage=1), offload=Offload(optimizer=0.5)), "megatron-lm"))
    assert given["--optimizer-offload-fraction"] == ("0.5",)
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer", "--use-distributed-optimizer"} <= set(given)
    alone = flags(export(*placed(*training(), offload=Offload(optimizer=1.0)), "megatron-lm"))
    assert "--use-distributed-optimizer" in alone


def test_deepspeed_takes_all_of_a_sharded_optimizer_and_shares_under_zero_3() -> None:
    whole = zero_optimization(*placed(*training(dp=8, zero_stage=2), offload=Offload(optimizer=1.0)))
    assert whole["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    part = zero_optimization(*placed(*training(dp=8, zero_stage=3), offload=Offload(optimizer=0.25)))
    assert part["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 0.25}
    single = zero_optimization(*placed(*training(), offload=Offload(optimizer=1.0)))
    assert single["stage"] == 1
    with pytest.raises(ExportError, match="a share goes with ZeRO-3 alone"):
        export(*placed(*training(dp=8, zero_stage=2), offload=Offload(optimizer=0.25)), "deepspeed")


def test_launchers_run_the_optimizer_that_was_chosen() -> None:
    plan, request = training(dp=8, zero_stage=1)
    chosen = with_fields(plan, optimizer=Optimizer.ADAMW_BF16)
    given = flags(export(chosen, request, "megatron-lm"))
    assert (given["--exp-avg-dtype"], "--use-precision-aware-optimizer" in given) == (("bf16",), True)
    plan, request = training(dp=8)
    document = json.loads(export(with_fields(plan, optimizer=Optimizer.MUON), request, "deepspeed").files["ds_config.json"])
    assert document["optimizer"]["type"] == "Muon"
    alone, request = training()
    small = flags(export(with_fields(alone, optimizer=Optimizer.ADAMW_8BIT), request, "megatron-lm"))
    assert "--use-distributed-optimizer" in small
    for launcher in ("deepspeed", "torchtitan"):
        with pytest.raises(ExportError, match="adamw_8bit"):
            export(with_fields(alone, optimizer=Optimizer.ADAMW_8BIT), request, launcher)


def test_groups_of_ranks_that_shard() -> None:
    hybrid = placed(*training(dp=8, zero_stage=3), shards=4)
    assert zero_optimization(*hybrid)["mics_shard_size"] == 4
    given = flags(export(*hybrid, "torchtitan"))
    degrees = (given["--parallelism.data_parallel_replicate_degree"], given["--parallelism.data_parallel_shard_degree"])
    assert degrees == (("2",), ("4",))
    with pytest.raises(ExportError, match="ZeRO-3 within a part of dp x cp; it has such groups for ZeRO 1"):
        export(*hybrid, "megatron-lm")
    copies = flags(export(*placed(*training(dp=8, zero_stage=1), shards=2), "megatron-lm"))
    assert copies["--num-distributed-optimizer-instances"] == ("4",) and "--use-distributed-optimizer" in copies
    assert "--num-distributed-optimizer-instances" not in flags(export(*training(dp=8, zero_stage=1), "megatron-lm"))
    gradients = flags(export(*placed(*training(dp=8, zero_stage=2), shards=2), "torchtitan"))
    assert gradients["--parallelism.data_parallel_replicate_degree"] == ("4",)
    assert gradients["--parallelism.fsdp_reshard_after_forward"] == ("never",)
    for launcher in ("torchtitan", "deepspeed"):
        with pytest.raises(ExportError, match="ZeRO-1 within a part of dp x cp"):
            export(*placed(*training(dp=8, zero_stage=1), shards=2), launcher)


@pytest.mark.parametrize("launcher", ["megatron-lm", "deepspeed", "torchtitan"])
def test_shares_of_activations_are_refused(launcher: str) -> None:
    with pytest.raises(ExportError, match="of activations on the host"):
        export(*placed(*training(dp=8, zero_stage=3), offload=Offload(activations=0.5)), launcher)


def test_deepspeed_moves_weights_under_zero_3_and_gradients_with_the_states() -> None:
    everything = Offload(optimizer=1.0, weights=1.0, gradients=1.0)
    whole = zero_optimization(*placed(*training(dp=8, zero_stage=3), offload=everything))
    assert whole["offload_param"] == {"device": "cpu", "pin_memory": True}
    for zero, offload, said in (
        (2, everything, "weights on the host; all, under ZeRO-3"),
        (3, Offload(weights=0.5), "weights on the host; all, under ZeRO-3"),
        (3, Offload(optimizer=1.0, gradients=0.5), "as large a share"),
    ):
        with pytest.raises(ExportError, match=said):
            export(*placed(*training(dp=8, zero_stage=zero), offload=offload), "deepspeed")
    with pytest.raises(ExportError, match="weights or gradients on the host"):
        export(*placed(*training(dp=8, zero_stage=3), offload=everything), "megatron-lm")


def test_deepspeed_moves_all_of_zero_3_to_drives() -> None:
    away = Offload(optimizer=1.0, weights=1.0, optimizer_to=Tier.NVME, weights_to=Tier.NVME)
    plan, request = placed(*training(dp=8, zero_stage=3), offload=away)
    drives = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
    groups = tuple(replace(g, node=replace(g.node, nvme=Nvme(10**13, 1e10, 1e10))) for g in request.cluster.groups)
    request = replace(request, cluster=replace(request.cluster, groups=groups))
    found = zero_optimization(plan, request)
    assert found["offload_param"] == drives
    assert found["offload_optimizer"] == drives | {"pipeline_read": True, "pipeline_write": True}
    assert any("/local_nvme" in said for said in export(plan, request, "deepspeed").assumptions)
    for launcher in ("megatron-lm", "torchtitan"):
        with pytest.raises(ExportError, match="state on drives"):
            export(plan, request, launcher)
    with pytest.raises(ExportError, match="all of it, under ZeRO-3"):
        export(*placed(plan, request, offload=replace(away, optimizer=0.5)), "deepspeed")


def test_torchtitan_moves_all_of_zero_3_or_nothing() -> None:
    everything = Offload(optimizer=1.0, weights=1.0, gradients=1.0)
    given = flags(export(*placed(*training(dp=8, zero_stage=3), offload=everything), "torchtitan"))
    assert "--training.enable_cpu_offload" in given
    with pytest.raises(ExportError, match="beside less than ZeRO-3"):
        export(*placed(*training(), offload=everything), "torchtitan")


def test_torchtitan_has_no_setting_for_optimizer_states_alone() -> None:
    with pytest.raises(ExportError, match="no setting for them alone"):
        export(*placed(*training(dp=8, zero_stage=2), offload=Offload(optimizer=1.0)), "torchtitan")
