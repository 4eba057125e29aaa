"""The rules for all exporters: golden commands, refusals, and the promise that nothing is lost in silence."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from meshwright.app.launching.exporters import LAUNCHERS, Export, export
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import ClusterError, ExportError
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.answer.stage import OperatorSharding
from meshwright.solver.problem.choices import GroupOrder, Launcher, Recompute
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.export import GOLDEN, golden_export
from tests.unit.app.exporters.plans import arguments, flags, serving, training

TRAINERS = [Launcher.MEGATRON_LM, Launcher.DEEPSPEED, Launcher.TORCHTITAN]


def text(result: Export) -> str:
    """Everything an export says, for people to read in a review."""
    parts = [f"{result.launcher.value} {result.version}", result.command]
    parts += [f"--- {name}\n{content.rstrip()}" for name, content in sorted(result.files.items())]
    parts += [f"not expressible: {line}" for line in result.inexpressible]
    parts += [f"takes for granted: {line}" for line in result.assumptions]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("launcher", list(Launcher))
def test_golden_exports(launcher: Launcher) -> None:
    """To accept a change, write the new text into the file and read the difference."""
    expected = (GOLDEN / f"{launcher.value}.txt").read_text(encoding="utf-8")
    assert text(golden_export(launcher)) == expected


@pytest.mark.parametrize("launcher", list(Launcher))
def test_commands_are_shell(launcher: Launcher) -> None:
    """A shell passes on the very words that we mean: quotes, pipes and continuations survive."""
    result = golden_export(launcher)
    line = result.command.replace("torchrun", "printf '%s\\n' torchrun").replace("vllm serve", "printf '%s\\n' vllm serve")
    line = line.replace("python -m sglang", "printf '%s\\n' python -m sglang")
    line = line.replace("deepspeed \\", "printf '%s\\n' deepspeed \\", 1)
    for words in ("accelerate launch", "trl sft", "trtllm-serve", "python -m maxtext"):
        line = line.replace(words, f"printf '%s\\n' {words}", 1)
    environment = {"NODE_RANK": "3", "MASTER_ADDR": "node-0", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, check=True)
    meant = [word.replace("$NODE_RANK", "3").replace("$MASTER_ADDR", "node-0") for word in arguments(result)]
    assert run.stdout.splitlines() == [word for word in meant if not re.match(r"[A-Z_]+=", word)]


def test_every_launcher_has_an_exporter() -> None:
    assert set(LAUNCHERS) == {launcher.value for launcher in Launcher}


def test_an_unknown_launcher_is_refused_by_name() -> None:
    with pytest.raises(
        ExportError, match=r"colossalai.*megatron-lm, megatron-bridge, nemo, deepspeed, .*vllm, sglang, tensorrt-llm"
    ):
        export(*training(), "colossalai")


@pytest.mark.parametrize("launcher", TRAINERS)
def test_trainers_refuse_serving_plans(launcher: Launcher) -> None:
    with pytest.raises(ExportError, match="launches training plans"):
        export(*serving(), launcher.value)


@pytest.mark.parametrize("launcher", [Launcher.VLLM, Launcher.SGLANG])
def test_servers_refuse_training_plans(launcher: Launcher) -> None:
    with pytest.raises(ExportError, match="launches serving plans"):
        export(*training(), launcher.value)


def test_an_infeasible_answer_has_nothing_to_launch() -> None:
    plan, request = training()
    infeasible = replace(plan, feasible=False, layout=None, reason=Reason("device_memory", 2.0, 1.0, "bytes", "too small"))
    with pytest.raises(ExportError, match="too small"):
        export(infeasible, request, "megatron-lm")


def _with_strategy(plan: Plan, operator: str, strategy: str) -> Plan:
    entries = (
        OperatorSharding(e.block, e.operator, strategy if e.operator == operator else e.strategy) for e in flat(plan).shardings
    )
    return with_fields(plan, shardings=tuple(entries))


@pytest.mark.parametrize("launcher", TRAINERS)
def test_shardings_of_the_free_space_are_refused(launcher: Launcher) -> None:
    plan, request = training(tp=2, dp=2)
    with pytest.raises(ExportError, match="o_proj"):
        export(_with_strategy(plan, "o_proj", "hidden"), request, launcher.value)


@pytest.mark.parametrize("launcher", TRAINERS)
def test_stages_that_differ_are_refused(launcher: Launcher) -> None:
    plan, request = training(dp=2, pp=2)
    differing = tuple(replace(stage, shardings=flat(plan).shardings) for stage in flat(plan).stages)
    with pytest.raises(ExportError, match="stage_degrees"):
        export(with_fields(plan, stages=differing), request, launcher.value)


@pytest.mark.parametrize("launcher", TRAINERS)
def test_damaged_plans_are_refused(launcher: Launcher) -> None:
    plan, request = training(dp=2, pp=2)
    with pytest.raises(ExportError, match="layer"):
        export(with_fields(plan, stages=flat(plan).stages[::-1]), request, launcher.value)


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.DEEPSPEED])
def test_zero_2_beside_a_pipeline_is_refused(launcher: Launcher) -> None:
    with pytest.raises(ExportError, match="ZeRO 2 beside pp 2"):
        export(*training(dp=2, pp=2, zero_stage=2), launcher.value)


@pytest.mark.parametrize("launcher", TRAINERS)
def test_recompute_by_stage_becomes_the_most_saving_mode_and_says_so(launcher: Launcher) -> None:
    result = export(*training(dp=2, pp=2, recompute=(Recompute.NONE, Recompute.FULL)), launcher.value)
    assert any("recompute by stage (none, full)" in line and "every stage runs full" in line for line in result.inexpressible)
    same = export(*training(dp=2, pp=2, recompute=(Recompute.FULL,)), launcher.value)
    assert result.command == same.command
    assert result.files == same.files


def test_nodes_are_counted_from_the_cluster() -> None:
    one_node = flags(export(*training(dp=8), "megatron-lm"))
    assert one_node["--nproc-per-node"] == ("8",)
    assert "--nnodes" not in one_node
    four = flags(export(*training(dp=8, tp=4), "megatron-lm"))
    assert (four["--nnodes"], four["--nproc-per-node"]) == (("4",), ("8",))


def test_a_rack_is_launched_as_its_hosts() -> None:
    plan, request = training(dp=8, tp=8)
    rack = replace(request.cluster.groups[0].node, devices_per_node=72, devices_per_host=4)
    request = replace(request, cluster=Cluster((NodeGroup("rack", part_of_node(rack, 64), 1),)))
    result = export(plan, request, "megatron-lm")
    assert (flags(result)["--nnodes"], flags(result)["--nproc-per-node"]) == (("16",), ("4",))
    assert any("0 to 15, through the groups in order: rack (16)" in line for line in result.assumptions)


def test_a_server_in_a_rack_counts_its_hosts() -> None:
    plan, request = serving(tp=8)
    rack = replace(request.cluster.groups[0].node, devices_per_node=72, devices_per_host=4)
    request = replace(request, cluster=Cluster((NodeGroup("rack", rack, 1),)))
    found = flags(export(plan, request, "vllm"))
    assert found["--nnodes"] == ("2",)
    assert "--data-parallel-size-local" not in found


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_racks_of_the_catalogue_have_eighteen_hosts(name: str) -> None:
    rack = node_type(name)
    assert rack.devices_per_node == 18 * rack.host_devices


def test_a_host_has_no_more_devices_than_its_node() -> None:
    node = training(dp=1)[1].cluster.groups[0].node
    with pytest.raises(ClusterError, match="devices_per_host"):
        replace(node, devices_per_host=9)


def test_nodes_that_differ_say_how_many_devices_take_part() -> None:
    plan, request = training(dp=2, pp=6, layers=[5, 6, 5, 5, 6, 5])
    result = export(plan, request, "megatron-lm")
    assert flags(result)["--nproc-per-node"] == ("$DEVICES",)
    assert any("8, 4 for nodes 0, 1" in line for line in result.assumptions)


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.TORCHTITAN])
def test_hosts_are_those_that_hold_ranks_in_the_order_in_which_they_do(launcher: Launcher) -> None:
    plan, request = training(dp=4, tp=2, pp=2, layers=[15, 17])
    node = request.cluster.groups[0].node
    groups = (NodeGroup("half", node, 2), NodeGroup("whole", node, 1))
    search = replace(request.search, group_order=GroupOrder.ANY, idle_groups=("half",))
    request = replace(request, cluster=Cluster(groups), search=search)
    plan = with_fields(plan, group_order=("whole", "half"), idle_devices={"half": 4})
    result = export(plan, request, launcher.value)
    said = " ".join(result.assumptions)
    assert "whole (1), half (2)" in said
    assert "8, 4, 4 for nodes 0, 1, ..." in said
    assert "--nnodes 3" in " ".join(result.command.split())
