"""Memory choices: ZeRO within groups of dp x cp, and state in host memory. Switching one off never gives a better plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, Nvme
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import HOST_ADAM_PARAMETERS_PER_S, Offload, Tier, host_update_s
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.ablations import ablations
from tests.unit.solver.training.instances import varied_request

N_ABLATED = 12
MEMORY_CHOICES = (
    "optimizer states on the host",
    "activations on the host",
    "exchanges of heads",
    "sharding within groups",
    "recompute full",
)
"""Of the ablations; `benchmarks/enumerable.py` tries them all."""


REFUSED = (
    (Space.FREE, Launcher.MEGATRON_LM, (0,)),
    (Space.LAUNCHABLE, Launcher.MEGATRON_LM, (0, 2, 3)),
    (Space.LAUNCHABLE, Launcher.DEEPSPEED, (1, 2)),
    (Space.LAUNCHABLE, Launcher.TORCHTITAN, (1,)),
)
"""ZeRO stages that shard within no groups."""


def request(nodes: int = 2, batch: int = 64, **search: object) -> TrainingRequest:
    """Llama-3.1-8B on A100 of 40 GB."""
    cluster = Cluster((NodeGroup("a", node_type("dgx-a100-40gb"), nodes),))
    fields: dict[str, object] = {"space": Space.FREE, "tp": (1,), "cp": (1,), "pp": (1,), "microbatch": (1,), **search}
    return TrainingRequest(
        model("llama-3.1-8b"),
        cluster,
        TrainingWorkload("training", global_batch=batch, seq_len=2048),
        search=Search(**fields),  # type: ignore[arg-type]
    )


def planned(asked: TrainingRequest) -> Plan:
    """The plan, with nothing for the checker to say."""
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    assert check(plan, asked) == ()
    return plan


def with_stages(plan: Plan, **changes: object) -> Plan:
    """The plan with every stage changed."""
    stages: tuple[Stage, ...] = tuple(replace(stage, **changes) for stage in flat(plan).stages)  # type: ignore[arg-type]
    return with_fields(plan, stages=stages)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(N_ABLATED))
def test_no_choice_switched_off_gives_a_better_plan(seed: int) -> None:
    asked = varied_request(seed)
    best = planned(asked)
    for name, less in ablations(asked):
        if name not in MEMORY_CHOICES:
            continue
        plan = planned(replace(asked, search=less))
        assert plan.feasible <= best.feasible, name
        if plan.feasible and best.feasible:
            assert plan.certificate.objective is not None and best.certificate.objective is not None
            assert plan.certificate.objective >= best.certificate.objective * (1 - 1e-9)


def test_sharding_inside_nodes_gathers_faster_and_holds_more() -> None:
    whole = planned(request(zero_stages=(3,), shard_ranks=(16,), recompute=(Recompute.FULL,)))
    inside = planned(request(zero_stages=(3,), shard_ranks=(8,), recompute=(Recompute.FULL,)))
    assert flat(inside).stages[0].shard_ranks == 8 and flat(whole).stages[0].shard_ranks is None
    assert flat(inside).stages[0].memory.weights_bytes == pytest.approx(2 * flat(whole).stages[0].memory.weights_bytes)
    assert flat(inside).stages[0].time_s < flat(whole).stages[0].time_s
    assert flat(inside).stages[0].extra_s > flat(whole).stages[0].extra_s, "gradients of the groups are summed once a step"
    assert predict_training(request(), inside).predicted == inside.predicted


def test_optimizer_states_on_the_host_leave_the_device_and_take_the_hosts_time() -> None:
    narrow: dict[str, object] = {"zero_stages": (2,), "recompute": (Recompute.FULL,)}
    here = planned(request(**narrow))
    moved = planned(request(offload_optimizer=(0.5,), **narrow))
    assert flat(moved).stages[0].offload == Offload(optimizer=0.5)
    memory, whole = flat(moved).stages[0].memory, flat(here).stages[0].memory
    assert memory.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 2)
    assert memory.host_bytes == pytest.approx(whole.optimizer_bytes / 2)
    parameters = whole.optimizer_bytes / 12
    host_s = 0.5 * parameters * 8 / HOST_ADAM_PARAMETERS_PER_S
    assert flat(moved).breakdown is not None and flat(here).breakdown is not None
    grown_s = flat(moved).breakdown.optimizer_s - flat(here).breakdown.optimizer_s
    assert 0.9 * host_s < grown_s < host_s, "the device updates half of what it did"


def test_activations_on_the_host_make_room() -> None:
    narrow: dict[str, object] = {"zero_stages": (3,), "recompute": (Recompute.NONE,)}
    here, moved = planned(request(**narrow)), planned(request(offload_activations=(0.75,), **narrow))
    assert flat(moved).stages[0].memory.activations_bytes < 0.5 * flat(here).stages[0].memory.activations_bytes
    stage = flat(moved).stages[0]
    assert stage.offload == Offload(activations=0.75)
    assert stage.memory.host_bytes > stage.memory.activations_bytes
    assert flat(moved).breakdown is not None and flat(moved).breakdown.offload_s > 0
    assert predict_training(request(), moved).predicted == moved.predicted


def test_weights_and_gradients_on_the_host_leave_the_device_and_wait_for_the_link() -> None:
    """Of one layer's passes and its copies, each direction by itself, the longer; gradients that add up come up as well."""
    narrow: dict[str, object] = {"zero_stages": (3,), "recompute": (Recompute.FULL,), "shard_ranks": (16,)}
    here = planned(request(**narrow))
    moved = planned(request(offload_weights=(1.0,), offload_gradients=(0.5,), **narrow))
    memory, whole = flat(moved).stages[0].memory, flat(here).stages[0].memory
    assert flat(moved).stages[0].offload == Offload(weights=1.0, gradients=0.5)
    assert memory.weights_bytes == 0 and memory.gradients_bytes == pytest.approx(whole.gradients_bytes / 2)
    assert memory.host_bytes == pytest.approx(whole.weights_bytes + whole.gradients_bytes / 2)
    assert memory.transient_bytes > whole.transient_bytes
    assert flat(moved).breakdown is not None and flat(here).breakdown is not None
    device = moved_cluster(1.0).groups[0].node.device
    to_and_fro = (whole.weights_bytes * 2 + whole.gradients_bytes / 2) / device.host_bytes_per_s
    assert flat(moved).microbatch is not None
    assert flat(moved).breakdown.offload_s <= flat(moved).microbatch.count * to_and_fro
    slow = request(offload_weights=(1.0,), offload_gradients=(0.5,), **narrow)
    slow = replace(slow, cluster=moved_cluster(0.01))
    waiting = planned(slow)
    assert flat(waiting).stages[0].time_s > 0.99 * to_and_fro / 0.01, "a hundredth of the link: copies are all there is"
    assert Rule.STAGE_TIME in {violation.rule for violation in check(moved, slow)}
    assert predict_training(request(), moved).predicted == moved.predicted


def moved_cluster(speed: float) -> Cluster:
    node = node_type("dgx-a100-40gb")
    device = replace(node.device, host_bytes_per_s=speed * node.device.host_bytes_per_s)
    return Cluster((NodeGroup("a", replace(node, device=device), 2),))


def test_updates_take_what_is_not_where_the_states_are() -> None:
    """Gradients that lie with the states they update need not go down, weights that lie there need not come up."""
    device, parameters = moved_cluster(1e-3).groups[0].node.device, np.array([1e9])

    def seconds(offload: Offload) -> float:
        formats = {"gradient_dtype": DType.FP32, "precision": DType.BF16}
        return float(host_update_s(parameters, offload, device, devices_per_host=1, **formats)[0])

    byte_s = 1e9 / device.host_bytes_per_s
    assert seconds(Offload(optimizer=1.0)) == pytest.approx(4 * byte_s)
    assert seconds(Offload(optimizer=1.0, gradients=1.0)) == pytest.approx(2 * byte_s)
    assert seconds(Offload(optimizer=1.0, gradients=1.0, weights=1.0)) == pytest.approx(1e9 / HOST_ADAM_PARAMETERS_PER_S)
    assert seconds(Offload(weights=1.0)) == pytest.approx(2 * byte_s)
    assert seconds(Offload(gradients=0.5)) == pytest.approx(2 * byte_s)


def test_weights_lie_on_the_host_where_no_other_rank_has_them_whole() -> None:
    asked = request(zero_stages=(2,), recompute=(Recompute.FULL,))
    plan = planned(asked)
    with pytest.raises(PlanFileError, match="can't lie on the host"):
        predict_training(asked, with_stages(plan, offload=Offload(weights=0.5)))
    allowed = request(zero_stages=(2,), recompute=(Recompute.FULL,), offload_weights=(0.5,))
    found = check(with_stages(plan, offload=Offload(weights=0.5)), allowed)
    assert (Rule.HOST_MEMORY, "plan.stages[0].offload") in {(violation.rule, violation.where) for violation in found}


def with_drives(asked: TrainingRequest, capacity_bytes: int = 10**13, bytes_per_s: float = 20e9) -> TrainingRequest:
    drives = Nvme(capacity_bytes, bytes_per_s, bytes_per_s / 2)
    groups = tuple(replace(group, node=replace(group.node, nvme=drives)) for group in asked.cluster.groups)
    return replace(asked, cluster=Cluster(groups))


def test_state_on_drives_passes_through_the_host_and_waits_for_them() -> None:
    on_host: dict[str, object] = {
        "zero_stages": (3,),
        "shard_ranks": (16,),
        "recompute": (Recompute.FULL,),
        "offload_optimizer": (1.0,),
        "offload_weights": (1.0,),
    }
    to_drives: dict[str, object] = {"offload_optimizer_to": (Tier.NVME,), "offload_weights_to": (Tier.NVME,)}
    here = planned(request(**on_host))
    asked = with_drives(request(**on_host, **to_drives))
    there = planned(asked)
    memory, on_hosts = flat(there).stages[0].memory, flat(here).stages[0].memory
    assert memory.nvme_bytes == pytest.approx(on_hosts.host_bytes)
    assert 0 < memory.host_bytes < 0.3 * on_hosts.host_bytes, "two tiles, of the largest layer each: the embedding or the head"
    drives = asked.cluster.groups[0].node.nvme
    assert drives is not None and flat(here).breakdown is not None and flat(there).breakdown is not None
    states, weights = (8 * share / 14 * memory.nvme_bytes for share in (12 / 8, 2 / 8))
    turn_s = 8 * (states / drives.read_bytes_per_s + (states + weights) / drives.write_bytes_per_s)
    assert flat(there).breakdown.optimizer_s == pytest.approx(turn_s, rel=0.05), "slower than the hosts' cores"
    assert flat(there).breakdown.offload_s >= flat(here).breakdown.offload_s
    reread = 2 * 8 * weights / drives.read_bytes_per_s
    assert flat(there).stages[0].time_s >= reread
    assert predict_training(asked, there).predicted == there.predicted
    faster = with_drives(request(**on_host, **to_drives), bytes_per_s=2e12)
    assert flat(planned(faster)).stages[0].extra_s < flat(there).stages[0].extra_s


def test_drives_that_are_missing_small_or_not_asked_for_are_not_used() -> None:
    narrow: dict[str, object] = {"zero_stages": (3,), "recompute": (Recompute.FULL,), "offload_optimizer": (1.0,)}
    asked = request(**narrow, offload_optimizer_to=(Tier.NVME,))
    assert not plan_training(asked, stop=never_stop, progress=ignore_progress).feasible, "no drives"
    plan = planned(with_drives(asked))
    with pytest.raises(PlanFileError, match="NVMe drives"):
        predict_training(asked, plan)
    small = with_drives(asked, capacity_bytes=10**9)
    assert not plan_training(small, stop=never_stop, progress=ignore_progress).feasible
    given = predict_training(small, plan)
    assert given.reason is not None and given.reason.constraint == "nvme"
    assert Rule.HOST_MEMORY in {violation.rule for violation in check(plan, small)}
    slow = with_drives(asked, bytes_per_s=1e9)
    assert Rule.STAGE_TIME in {violation.rule for violation in check(plan, slow)}
    assert Rule.SEARCH in {violation.rule for violation in check(plan, with_drives(request(**narrow)))}


def test_hosts_that_are_too_small_are_not_used() -> None:
    asked = request(offload_optimizer=(1.0,), zero_stages=(2,))
    group = asked.cluster.groups[0]
    small = replace(group, node=replace(group.node, host_memory_bytes=2**30))
    crowded = replace(asked, cluster=Cluster((small,)))
    assert not plan_training(crowded, stop=never_stop, progress=ignore_progress).feasible
    plan = planned(asked)
    given = predict_training(crowded, plan)
    assert given.reason is not None and given.reason.constraint == "host_memory"
    # All devices of a node share its host.
    needed = flat(plan).stages[0].memory.host_bytes * group.node.devices_per_node
    for share, refused in ((0.99, True), (1.01, False)):
        node = replace(group.node, host_memory_bytes=int(needed * share))
        just = replace(asked, cluster=Cluster((replace(group, node=node),)))
        limits = {violation.limit for violation in check(plan, just)}
        assert ("host_memory" in limits) is refused
        assert (predict_training(just, plan).reason is not None) is refused


def test_the_checker_wants_host_memory_as_it_is_and_groups_that_divide() -> None:
    asked = request(offload_optimizer=(0.5,), zero_stages=(2,))
    plan = planned(asked)
    stage = flat(plan).stages[0]
    wrong = with_stages(plan, memory=replace(stage.memory, host_bytes=stage.memory.host_bytes * 1.1))
    assert {violation.rule for violation in check(wrong, asked)} == {Rule.HOST_BYTES}
    grouped = planned(request(zero_stages=(3,), shard_ranks=(8,)))
    assert Rule.ZERO in {violation.rule for violation in check(with_stages(grouped, shard_ranks=6), request())}
    with pytest.raises(PlanFileError, match="shard_ranks"):
        predict_training(request(), with_stages(grouped, shard_ranks=6))


def test_states_within_nodes_take_more_memory_and_are_checked() -> None:
    narrow: dict[str, object] = {"zero_stages": (2,), "recompute": (Recompute.FULL,), "offload_optimizer": (1.0,)}
    asked = request(shard_ranks=(8, 16), **narrow)
    whole, inside = (planned(replace(asked, search=replace(asked.search, shard_ranks=(n,)))) for n in (16, 8))
    stage, of_all = flat(inside).stages[0], flat(whole).stages[0]
    assert (stage.zero_stage, stage.shard_ranks, of_all.shard_ranks) == (2, 8, None)
    assert stage.memory.host_bytes == pytest.approx(2 * of_all.memory.host_bytes)
    assert stage.memory.gradients_bytes == pytest.approx(2 * of_all.memory.gradients_bytes)
    assert predict_training(asked, inside).predicted == inside.predicted
    for wrong in (4, None):
        assert Rule.HOST_BYTES in {violation.rule for violation in check(with_stages(inside, shard_ranks=wrong), asked)}


@pytest.mark.parametrize(("space", "launcher", "zero_stages"), REFUSED)
def test_numbers_of_ranks_that_shard_are_refused_where_no_zero_stage_shards_so(
    space: Space, launcher: Launcher, zero_stages: tuple[int, ...]
) -> None:
    with pytest.raises(WorkloadError, match="shards within groups"):
        planned(request(space=space, launcher=launcher, zero_stages=zero_stages, shard_ranks=(8,)))
