"""Rows that leave much open are predicted, and say what was assumed of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.plans import assumptions, given_plan
from meshwright.app.evidence.training.prediction import costed_run, predict_run
from meshwright.app.evidence.training.rows import Run
from meshwright.solver.problem.declared.cp_keys import CpKeys
from tests.unit.app.validation.tables import run

SHAPELESS = dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "arch"), "")
GPT = {"model": "gpt", "arch": "dense-gelu", "hidden": "4096", "heads": "", "kv_heads": "", "ffn_hidden": "", "vocab": ""}


def row(folder: Path, **changes: str) -> Run:
    """Return the run of a row of a source that nothing is known of."""
    return run(folder, **changes)


@pytest.mark.parametrize(
    ("named", "experts"), [("DeepSeekV3", 256), ("Qwen3_235B_a22B", 128), ("Nemotron_3_Super", 512), ("Kimi_K2", 384)]
)
def test_a_model_without_shape_is_looked_up_by_name(tmp_path: Path, named: str, experts: int) -> None:
    asked = row(tmp_path, **SHAPELESS, model=named, dp="8", tp="1", pp="1", ep="8")
    assert given_plan(asked).request.model.dims["experts"] == experts
    assert any("catalogue" in words for words in assumptions(asked))


def test_a_name_that_fits_no_model_or_several_is_not_guessed(tmp_path: Path) -> None:
    for named in ("Llama", "my own"):
        with pytest.raises(NotPredictedError, match="n_layers"):
            given_plan(row(tmp_path, **SHAPELESS, model=named))


def test_shape_is_completed_from_width_and_parameters(tmp_path: Path) -> None:
    asked = row(tmp_path, **GPT, n_layers="", params_b="6.7")
    assert (asked.n_layers, asked.heads, asked.ffn, asked.vocab) == (32, 32, 16384, 50257)
    assert len(asked.assumed) == 4 and predict_run(asked).step_time_s > 0


def test_heads_divide_among_the_ranks_that_share_them(tmp_path: Path) -> None:
    assert row(tmp_path, **GPT | {"hidden": "14400"}, tp="8", pp="1").heads == 120
    assert row(tmp_path, **GPT | {"hidden": "12288"}, tp="8", pp="1").heads == 96


def test_replicas_fill_the_devices(tmp_path: Path) -> None:
    assert row(tmp_path, dp="", n_gpus="32").dp == 4
    assert row(tmp_path, dp="2", n_gpus="").n_gpus == 16


@pytest.mark.parametrize(
    ("arch", "kv_heads", "operator"),
    [
        ("moe-gated", "8", "experts_gate_up_proj"),
        ("moe-gelu", "32", "experts_up_proj"),
        ("moe-mla", "32", "experts_gate_up_proj"),
    ],
)
def test_experts_by_columns(tmp_path: Path, arch: str, kv_heads: str, operator: str) -> None:
    moe = {"arch": arch, "n_experts": "8", "top_k": "2", "kv_heads": kv_heads}
    dense = predict_run(row(tmp_path, dp="4", tp="1"))
    asked = row(tmp_path, **moe, dp="4", tp="1", ep="2")
    model = given_plan(asked).request.model
    assert operator in {each.name for block in model.blocks for each in block.operators}
    assert predict_run(asked).step_time_s > dense.step_time_s


def test_more_places_of_experts_than_replicas_are_whole_experts(tmp_path: Path) -> None:
    moe = {"arch": "moe-gated", "n_experts": "8", "top_k": "2", "dp": "2", "tp": "4", "pp": "1"}
    assert given_plan(row(tmp_path, **moe, ep="8")).candidate.mesh.etp == 1
    assert given_plan(row(tmp_path, **moe, ep="2")).candidate.mesh.etp is None


@pytest.mark.parametrize(
    ("said", "ulysses", "keys"),
    [("", 1, CpKeys.RING), ("p2p", 1, CpKeys.RING), ("a2a", 4, CpKeys.RING), ("all_gather", 1, CpKeys.GATHERED)],
)
def test_a_mapping_says_how_the_ranks_of_a_sequence_attend(tmp_path: Path, said: str, ulysses: int, keys: CpKeys) -> None:
    mesh = given_plan(replace(row(tmp_path, cp="4", tp="1", pp="2"), cp_comm_type=said)).candidate.mesh
    assert (mesh.cp, mesh.ulysses, mesh.choices.cp_keys) == (4, ulysses, keys)


def test_other_ways_to_attend_are_not_predicted(tmp_path: Path) -> None:
    with pytest.raises(NotPredictedError, match="context parallelism a2a\\+p2p"):
        given_plan(replace(row(tmp_path, cp="4", tp="1", pp="2"), cp_comm_type="a2a+p2p"))


@pytest.mark.parametrize("pp", ["1", "2"])
def test_some_first_layers_of_each_part_are_recomputed(tmp_path: Path, pp: str) -> None:
    shape = {"dp": "2" if pp == "1" else "1", "tp": "4", "pp": pp}
    words = ("none", "full of 4 layers", "full of 12 layers", "full")
    costs = [costed_run(row(tmp_path, **shape, recompute=said)).cost for said in words]
    times_s = [cost.step_time_s for cost in costs]
    memory = [max(stage.need_bytes for stage in cost.stages) for cost in costs]
    assert times_s == sorted(times_s) and memory == sorted(memory, reverse=True)
    layers = 32 // int(pp)
    assert times_s[2] - times_s[0] == pytest.approx(12 / layers * (times_s[3] - times_s[0]), rel=0.02)
    assert costed_run(row(tmp_path, **shape, recompute="full of 32 layers")).cost.step_time_s == pytest.approx(times_s[3])


@pytest.mark.parametrize("said", ["full of some", "none of 4 layers", "full of -1 layers", "full of mlp"])
def test_other_words_of_recomputation_are_not_predicted(tmp_path: Path, said: str) -> None:
    with pytest.raises(NotPredictedError, match=f"recomputation {said}"):
        given_plan(row(tmp_path, recompute=said))


@pytest.mark.parametrize("name", ["1F1B", "1f1b (DeepSpeed)", "PipeDream-Flush", "DeepSpeed TrainSchedule", "interleaved-1f1b"])
def test_one_forward_one_backward_by_its_names(tmp_path: Path, name: str) -> None:
    assert given_plan(row(tmp_path, schedule=name)).candidate == given_plan(row(tmp_path, schedule="1f1b")).candidate


def test_other_schedules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPredictedError, match="ZB-H1"):
        given_plan(row(tmp_path, schedule="ZB-H1"))


def test_a_job_takes_equal_parts_of_racks(tmp_path: Path) -> None:
    asked = row(tmp_path, gpu="GB200", gpus_per_node="", n_gpus="256", dp="64", tp="4", pp="1")
    cluster = given_plan(asked).request.cluster
    assert (cluster.groups[0].nodes, cluster.groups[0].node.devices_per_node) == (4, 64)
    assert "64 devices of each node of 72" in assumptions(asked)
    tray = given_plan(row(tmp_path, gpu="GB200", gpus_per_node="4", n_gpus="8", dp="1")).request.cluster
    assert tray.groups[0].nodes == 1
    with pytest.raises(NotPredictedError, match="whole nodes"):
        given_plan(row(tmp_path, gpu="GB200", gpus_per_node="", n_gpus="146", dp="73", tp="2", pp="1", global_batch="73"))
