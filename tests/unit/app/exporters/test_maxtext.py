"""MaxText's file: keys and kinds of base.yml, axes inside of nodes and over them, its batch, and what `explain` reads back."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import yaml

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.launchers.maxtext import CONFIG, MODULE, sequences_a_device
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.models.catalog import model
from meshwright.costmodels.errors import ExportError, InvalidInputError, WorkloadError
from meshwright.costmodels.memory.training_state import Offload
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import PlanRequest, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.candidates import families
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.plans import cluster, training
from tests.unit.app.exporters.real.maxtext_keys import misfits
from tests.unit.app.exporters.real_tools import ask

Case = tuple[Plan, PlanRequest]
AXES = ("data", "fsdp", "context", "tensor", "tensor_sequence")


def asked(
    name: str = "llama-3.2-1b", *, nodes: int = 1, devices: int = 8, precision: DType = DType.BF16, **search: Any
) -> TrainingRequest:
    """A request in the launcher's own space."""
    workload = TrainingWorkload("training", global_batch=48, seq_len=2048, precision=precision)
    own = Search(launcher=Launcher.MAXTEXT, max_candidates=40, **search)
    return TrainingRequest(model(name), cluster(nodes, devices), workload, search=own)


def planned(name: str, **given: Any) -> Case:
    """The plan that is found there."""
    request = asked(name, **given)
    return plan_training(request, progress=ignore_progress, stop=never_stop), request


def within(shard_ranks: int, **layout: Any) -> Case:
    """A plan that shards within groups of ranks."""
    plan, request = training(zero_stage=3, **layout)
    return with_fields(plan, stages=tuple(replace(stage, shard_ranks=shard_ranks) for stage in flat(plan).stages)), request


def read_back(found: Export) -> StatedTraining:
    stated = read_command(found.command, LaunchFiles(found.files))
    assert isinstance(stated, StatedTraining)
    return stated


CASES = {
    "plain": lambda: training(dp=8),
    "zero-1": lambda: training(dp=4, tp=2, zero_stage=1, sequence_parallel=True, recompute=(Recompute.SELECTIVE,)),
    "sharded": lambda: training(dp=16, zero_stage=3, microbatch=2, recompute=(Recompute.FULL,)),
    "ring": lambda: training(dp=2, tp=2, cp=4, zero_stage=3),
    "within groups": lambda: within(8, dp=16, cp=2),
    "one rank": lambda: training("qwen3-0.6b"),
    "biases": lambda: training("qwen2.5-7b", dp=2, tp=4, zero_stage=1),
    "planned": lambda: planned("qwen3-0.6b", nodes=2, devices=3),
}


@pytest.mark.parametrize("case", CASES)
def test_base_yml_has_the_keys_and_explain_reads_them_back(case: str) -> None:
    plan, request = CASES[case]()
    found = export(plan, request, "maxtext")
    document = yaml.safe_load(found.files[CONFIG])
    assert list(misfits(document)) == []
    pipelines, stated = pipeline_plan(plan), read_back(found)
    axes, stage = pipelines.axes, pipelines.stages[0]
    assert stated.launcher is Launcher.MAXTEXT
    assert (stated.data_parallel, stated.tp, stated.pp, stated.cp) == (axes.dp, axes.tp, 1, axes.cp)
    assert stated.world == plan.devices
    assert (stated.microbatch, stated.accumulation) == (pipelines.microbatch.size, pipelines.microbatch.count)
    assert (stated.zero_stage, stated.recompute) == (stage.zero_stage if axes.dp * axes.cp > 1 else 0, stage.recompute)
    shards = stage.shard_ranks or axes.dp * axes.cp
    assert (stated.optimizer_copies or 1) == (axes.dp * axes.cp // shards if stage.zero_stage == 3 else 1)
    assert stated.sequence_parallel == (pipelines.sequence_parallel and axes.tp > 1)
    assert {flag.standing.value for flag in stated.given} <= {"read", "harmless", "not priced"}
    assert stated.problems == ()
    # Its own file, given alone, says the same.
    alone = read_command(found.files[CONFIG])
    assert isinstance(alone, StatedTraining)
    assert (alone.launcher, alone.data_parallel, alone.tp) == (Launcher.MAXTEXT, axes.dp, axes.tp)


@pytest.mark.parametrize("case", CASES)
def test_axes_fill_nodes_and_the_batch_is_the_plans(case: str) -> None:
    plan, request = CASES[case]()
    document = yaml.safe_load(export(plan, request, "maxtext").files[CONFIG])
    inside, over = ([document[f"{place}_{axis}_parallelism"] for axis in AXES] for place in ("ici", "dcn"))
    nodes = sum(group.nodes for group in request.cluster.groups)
    assert (math.prod(inside), math.prod(over)) == (plan.devices // nodes, nodes)
    # calculate_global_batch_sizes cuts off.
    rows = int(plan.devices * document["per_device_batch_size"]) * document["gradient_accumulation_steps"]
    assert isinstance(request, TrainingRequest)
    assert rows == request.workload.global_batch


@pytest.mark.parametrize("case", CASES)
def test_its_own_reader_takes_the_file(case: str) -> None:
    plan, request = CASES[case]()
    assert isinstance(request, TrainingRequest)
    text = export(plan, request, "maxtext").files[CONFIG]
    nodes = sum(group.nodes for group in request.cluster.groups)
    found = ask("maxtext", "maxtext_config.py", {"text": text, "devices": plan.devices, "nodes": nodes})
    pipelines = pipeline_plan(plan)
    axes, microbatch = pipelines.axes, pipelines.microbatch
    assert found["global_batch_size_to_train_on"] == request.workload.global_batch
    assert found["micro_batch_size_to_train_on"] == microbatch.size * axes.dp
    sizes = dict(
        zip(
            found["mesh_axes"],
            map(math.prod, zip(found["ici_parallelism"], found["dcn_parallelism"], strict=True)),
            strict=True,
        )
    )
    assert sizes["data"] * sizes["fsdp"] == axes.dp
    assert (sizes["context"], sizes["tensor"] * sizes["tensor_sequence"]) == (axes.cp, axes.tp)
    assert math.prod(sizes.values()) == plan.devices
    assert found["shard_optimizer_over_data"] == (pipelines.stages[0].zero_stage == 1)


def test_a_batch_of_a_share_of_a_sequence_a_device_is_not_cut_off() -> None:
    """As 49 times a 49th would be."""
    assert int(49 * (1 / 49)) == 0
    for devices, rows in itertools.product(range(1, 200), range(1, 50)):
        assert int(devices * sequences_a_device(rows, devices)) == rows


def test_ranks_lie_as_the_plan_says() -> None:
    """tp innermost, then the ranks of a sequence, then those that shard; replicas over nodes."""
    document = yaml.safe_load(export(*within(4, dp=8, tp=2, cp=2, sequence_parallel=True), "maxtext").files[CONFIG])
    sizes = {axis: tuple(document[f"{place}_{axis}_parallelism"] for place in ("ici", "dcn")) for axis in AXES}
    assert sizes == {"data": (1, 4), "fsdp": (2, 1), "context": (2, 1), "tensor": (1, 1), "tensor_sequence": (2, 1)}


@pytest.mark.parametrize(
    ("mode", "kept"),
    [(Recompute.NONE, ("custom", "device")), (Recompute.SELECTIVE, ("custom", "remat")), (Recompute.FULL, ("full", None))],
)
def test_modes_keep_attentions_output_or_not(mode: Recompute, kept: tuple[str, str | None]) -> None:
    document = yaml.safe_load(export(*training(dp=2, recompute=(mode,)), "maxtext").files[CONFIG])
    assert (document["remat_policy"], document.get("context")) == kept


def test_blocks_are_those_that_have_the_models_biases_and_norms() -> None:
    for name, block in (("llama-3.1-8b", "llama2"), ("qwen2.5-7b", "qwen2"), ("qwen3-8b", "qwen3")):
        document = yaml.safe_load(export(*training(name, dp=2), "maxtext").files[CONFIG])
        assert document["decoder_block"] == block
        assert document["attention_bias"] == (block == "qwen2")
        assert document["use_qk_norm"] == (block == "qwen3")


def test_a_node_of_several_starts_a_process_that_meets_the_others() -> None:
    command = export(*training(dp=16, zero_stage=3), "maxtext").command
    assert 'JAX_COORDINATOR_IP="$MASTER_ADDR"' in command and "NNODES=2" in command
    alone = export(*training(dp=2), "maxtext").command
    assert "JAX_COORDINATOR_IP" not in alone and "CUDA_VISIBLE_DEVICES=0,1 " in alone


def test_what_is_lost_and_borrowed_is_said() -> None:
    found = export(*training(dp=8, zero_stage=1), "maxtext")
    assert any("sums them in bf16" in line for line in found.inexpressible)
    assert any("borrowed" in line for line in found.assumptions)
    assert not export(*training(dp=8, zero_stage=3), "maxtext").inexpressible


def offloaded() -> Case:
    plan, request = training(dp=4, zero_stage=3)
    moved = tuple(replace(stage, offload=Offload(optimizer=1.0)) for stage in flat(plan).stages)
    return with_fields(plan, stages=moved), request


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda: training(dp=2, zero_stage=2), "it has 0, 1, 3"),
        (lambda: training(dp=2, cp=2, zero_stage=1), "whose ranks share out the weights"),
        (lambda: training(dp=2, pp=2), "it has no pipelines"),
        (lambda: training("mixtral-8x7b", dp=2), "experts"),
        (lambda: training("gemma-2-9b", dp=2), "feed-forward"),
        (lambda: training(dp=2, precision=DType.FP32), "fp32"),
        (lambda: training(dp=3, zero_stage=3, global_batch=63), "does not divide by the 3 ranks that shard"),
        (lambda: training(dp=2, cp=4, tp=1, zero_stage=3, devices_per_node=6), "nodes that are not equal"),
        (lambda: training(dp=3, cp=4, zero_stage=3, devices_per_node=6, global_batch=63), "tp x cp is 4 on nodes of 6"),
        (lambda: within(4, dp=12, devices_per_node=6, global_batch=60), "the ranks that shard is 4 on nodes of 6"),
        (offloaded, "optimizer states on the host"),
    ],
)
def test_what_it_has_not_is_refused(broken: Any, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        export(*broken(), "maxtext")


def test_searches_of_what_it_has_not_are_refused() -> None:
    with pytest.raises(WorkloadError, match="maxtext has no layers of this model"):
        planned("mixtral-8x7b")
    with pytest.raises(WorkloadError, match="fp32"):
        planned("llama-3.2-1b", precision=DType.FP32)


def test_its_space_has_what_it_starts_alone() -> None:
    """On nodes of six devices: no groups that cross their borders, none that do not divide the width, 2048."""
    found = [*families(asked(nodes=2, devices=6))]
    assert {family.mesh.pp for family in found} == {1}
    places = {
        (family.mesh.tp, family.mesh.cp, place.zero_stage, place.shard_ranks) for family in found for place in family.places
    }
    assert {zero for _, _, zero, _ in places} == {0, 1, 3}
    assert {zero for _, cp, zero, _ in places if cp > 1} == {3}
    assert {cp for _, cp, _, _ in places} == {1, 2}
    assert {ranks for _, cp, zero, ranks in places if zero == 3} == {2}


RUN = f"python3 -m {MODULE} src/maxtext/configs/base.yml run_name=a model_name=llama3.1-8b hardware=gpu"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", {"zero_stage": 3, "data_parallel": None, "microbatch": 12, "recompute": Recompute.FULL, "seq_len": 2048}),
        (
            "dcn_data_parallelism=2 ici_fsdp_parallelism=4 ici_tensor_parallelism=2 per_device_batch_size=1.5",
            {"world": 16, "tp": 2, "microbatch": 3, "optimizer_copies": 2, "sequence_parallel": False},
        ),
        ("remat_policy=minimal gradient_accumulation_steps=4", {"recompute": Recompute.SELECTIVE, "accumulation": 4}),
        ("remat_policy=minimal_with_context", {"recompute": Recompute.NONE}),
        (
            "ici_fsdp_parallelism=1 ici_data_parallelism=8 dcn_data_parallelism=1 shard_optimizer_over_data=true",
            {"zero_stage": 1, "data_parallel": 8},
        ),
    ],
)
def test_runs_of_others_are_read(more: str, wanted: dict[str, Any]) -> None:
    stated = read_command(f"{RUN} {more}")
    assert isinstance(stated, StatedTraining)
    assert stated.model == "llama-3.1-8b"
    assert {name: getattr(stated, name) for name in wanted} == wanted


def test_files_that_one_is_based_on_are_read() -> None:
    files = LaunchFiles(
        {"own.yml": "base_config: 'mid.yml'\nsteps: 3\n", "mid.yml": "max_target_length: 4_096\nremat_policy: none\n"}
    )
    stated = read_command(f"python3 -m {MODULE} own.yml remat_policy=full", files)
    assert isinstance(stated, StatedTraining)
    assert (stated.seq_len, stated.recompute) == (4096, Recompute.FULL)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("ici_pipeline_parallelism=2", "circular"),
        ("opt_type=muon", "optimizer"),
        ("dtype=int8", "dtype"),
        ("ici_fsdp_parallelism=0", "ici-fsdp"),
    ],
)
def test_runs_that_no_plan_is_like_are_refused(more: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        read_command(f"{RUN} {more}")


def test_a_batch_of_no_whole_sequences_is_a_problem() -> None:
    stated = read_command(f"{RUN} per_device_batch_size=1.3")
    assert isinstance(stated, StatedTraining)
    assert any("makes no whole sequences" in problem for problem in stated.problems)
