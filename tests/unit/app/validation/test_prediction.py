"""Predictions of runs: blind to what was measured, and right in direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.clusters import cluster_of
from meshwright.app.evidence.training.models import model_graph
from meshwright.app.evidence.training.plans import given_plan
from meshwright.app.evidence.training.prediction import costed_run, launchers_spans, predict_run
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import Source, Sources
from meshwright.app.evidence.training.stated import RowRule
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import AttentionKernels, Dropout, GradientReduction, HostPath, ScanKernels
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.units import DType
from meshwright.solver.api import solve
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.token_prediction import mtp_layers_of
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from tests.support.flat_plans import flat
from tests.unit.app.validation.tables import measured, run, write_table

UNFUSED = StatedImplementation(attention_kernels=AttentionKernels.UNFUSED, dropout=Dropout.MASKED)


def test_what_was_measured_does_not_enter(tmp_path: Path) -> None:
    given = predict_run(run(tmp_path))
    assert predict_run(run(tmp_path, step_time_s="1", tokens_per_s="5", mfu_pct="99", peak_mem_gb="3", status="oom")) == given


def test_a_row_is_predicted_as_its_plan_document_is(tmp_path: Path) -> None:
    """The validation's own assembly of a decision agrees with the solver's for a plan it made itself."""
    plan = given_plan(run(tmp_path, pp="1", tp="4", dp="2"))
    only = Search(dp=(2,), tp=(4,), pp=(1,), cp=(1,), microbatch=(1,), recompute=(Recompute.NONE,), zero_stages=(0,))
    request = replace(plan.request, search=only)
    solved = solve(request, stop=never_stop, progress=ignore_progress)
    row = run(tmp_path, pp="1", tp="4", dp="2", sp=str(int(flat(solved).sequence_parallel)))
    again = predict_training(request, solved)
    assert again.predicted is not None
    assert predict_run(row).step_time_s == pytest.approx(again.predicted.step_time_s)
    assert predict_run(row).peak_memory_gb == pytest.approx(again.predicted.peak_memory_bytes / 2**30)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"recompute": "full"}, {}),
        ({"pp": "4", "tp": "2"}, {"pp": "4", "tp": "2", "vpp": "2", "schedule": "interleaved-1f1b"}),
        ({"flash_attention": "0"}, {}),
        ({"gpu": "A100-SXM-80GB"}, {"gpu": "H100-SXM-80GB"}),
        (
            {"n_gpus": "16", "dp": "2", "inter_node_bw": "100 Gb/s per node", "source_id": "simumax_b200"},
            {"n_gpus": "16", "dp": "2", "inter_node_bw": "400 Gb/s per GPU", "source_id": "simumax_b200"},
        ),
        (
            {"dp": "8", "tp": "1", "pp": "1", "source_id": "simumax_b200"},  # gradients after the backward pass
            {"dp": "8", "tp": "1", "pp": "1", "zero_stage_or_fsdp": "1"},  # under it
        ),
    ],
)
def test_slower_plans_take_longer(tmp_path: Path, slower: dict[str, str], faster: dict[str, str]) -> None:
    assert predict_run(run(tmp_path, **slower)).step_time_s > predict_run(run(tmp_path, **faster)).step_time_s


def test_memory_follows_the_plan(tmp_path: Path) -> None:
    plain = predict_run(run(tmp_path))
    assert predict_run(run(tmp_path, recompute="full")).peak_memory_gb < plain.peak_memory_gb
    sharded = predict_run(run(tmp_path, dp="2", tp="2", zero_stage_or_fsdp="zero1 shard=2"))
    assert sharded.peak_memory_gb < predict_run(run(tmp_path, dp="2", tp="2")).peak_memory_gb
    assert plain.fits
    assert not predict_run(run(tmp_path, gpu="V100-16GB", precision="fp16")).fits


def test_interleaving_holds_more_activations(tmp_path: Path) -> None:
    """Megatron-LM SC'21: p (1 + (p - 1) / (p v)) micro-batches on the first rank, where 1F1B holds p."""
    plain, chunked = (
        predict_run(run(tmp_path, pp="4", tp="2", vpp=str(v), schedule="interleaved-1f1b")).peak_memory_gb for v in (1, 2)
    )
    without = predict_run(run(tmp_path, pp="4", tp="2", recompute="full")).peak_memory_gb
    assert 1.2 < (chunked - without) / (plain - without) < 1.5


def test_memory_is_that_of_the_device_the_source_reports(tmp_path: Path) -> None:
    fullest = predict_run(run(tmp_path, pp="4", tp="2", zero_stage_or_fsdp="1")).peak_memory_gb
    mean = predict_run(run(tmp_path, pp="4", tp="2", zero_stage_or_fsdp="1", source_id="seed_ascend")).peak_memory_gb
    assert mean < 0.95 * fullest


def test_interleaving_shortens_the_bubble_by_its_chunks(tmp_path: Path) -> None:
    """Megatron-LM SC'21, section 2.2.2: (p - 1) (F + B) / v."""

    def step_s(v: int, batch: int = 64) -> float:
        cells = {"pp": "4", "tp": "2", "vpp": str(v), "schedule": "interleaved-1f1b", "global_batch": str(batch)}
        return predict_run(run(tmp_path, **cells)).step_time_s

    longest_stage_s = (step_s(2, 128) - step_s(2, 64)) / 64
    # Of the bubble of four stages, half is left with two chunks and a quarter with four; sends hide in both. The head makes
    # the last stage the longest: the others are shorter, by less than half.
    assert 0.5 * 0.25 * 3 * longest_stage_s < step_s(2) - step_s(4) < 0.25 * 3 * longest_stage_s


def test_launchers_split_layers_evenly() -> None:
    candidate = Candidate(Mesh(dp=1, tp=1, pp=4, cp=1), 1, 8, 0, REPLICATED, (Recompute.NONE,))
    spans = launchers_spans(12, candidate)
    assert [(span.first, span.last) for span in spans] == [(0, 3), (4, 6), (7, 8), (9, 11)]
    with pytest.raises(NotPredictedError, match="4 stages of 3 layers"):
        launchers_spans(5, candidate)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": ""}, "does not say which GPU"),
        ({"gpu": "TPU-v5"}, "no GPU TPU-v5"),
        ({"n_gpus": "", "dp": ""}, "gives no dp"),
        ({"n_gpus": "12"}, "not whole nodes of 8"),
        ({"n_gpus": "16"}, "dp x tp x pp x cp is 8"),
        ({"dp": "", "n_gpus": "9"}, "gives no dp"),
        ({"global_batch": "", "seq_len": ""}, "gives no seq_len, global_batch"),
        ({"hidden": ""}, "gives no hidden"),
        ({"ffn_hidden": ""}, "gives no ffn_hidden"),
        ({"arch": "moe"}, "architecture moe"),
        ({"ep": "8"}, "ep 8 on dp x cp = 1"),
        ({"precision": "mxfp8"}, "fp8"),
        ({"precision": "fp8 of a kind"}, "precision fp8 of a kind"),
        ({"recompute": "selective (every 2nd layer)"}, "every 2nd layer"),
        ({"schedule": "zb-h1"}, "schedule zb-h1"),
        ({"dp": "2", "tp": "2", "global_batch": "63"}, "63 on 2 replicas"),
        ({"zero_stage_or_fsdp": "zero7"}, "no ZeRO stage"),
        ({"inter_node_bw": "fast"}, "not a speed"),
        ({"arch": "mamba2 state=64"}, "gives no chunk, expand, ngroups"),
        ({"schedule": "interleaved-1f1b", "vpp": "4", "global_batch": "7"}, "interleaved"),
        ({"tp": "1", "pp": "8", "n_layers": "7"}, "8 stages of 7 layers"),
    ],
)
def test_what_can_not_be_predicted_says_why(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(NotPredictedError, match=reason):
        predict_run(run(tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("800 (Gb/s per node, repo config)", 100e9),
        ("1600 Gb/s per node RoCE", 200e9),
        ("400 Gb/s per GPU", 400e9),
        ("4x100Gb RoCE per node", 50e9),
        ("25 GB/s per node", 25e9),
    ],
)
def test_stated_network_speeds_count(tmp_path: Path, text: str, bytes_per_s: float) -> None:
    cluster = cluster_of(run(tmp_path, inter_node_bw=text))
    assert cluster.groups[0].node.inter.bytes_per_s == pytest.approx(bytes_per_s)


def test_a_part_of_a_node_has_its_share_of_the_network(tmp_path: Path) -> None:
    cluster = cluster_of(run(tmp_path, n_gpus="2"))
    assert cluster.n_devices == 2
    assert cluster.groups[0].node.inter.bytes_per_s == pytest.approx(node_type("dgx-a100").inter.bytes_per_s / 4)


@pytest.mark.parametrize(
    ("text", "stage"),
    [("", 2), ("0", 0), ("zero1 shard=dp", 1), ("fsdp", 3), ("fsdp3 (shard 64)", 3), ("dist-opt (recipe)", 1)],
)
def test_zero_stages_are_read_from_their_names(tmp_path: Path, text: str, stage: int) -> None:
    row = replace(run(tmp_path, zero_stage_or_fsdp=text), reading=Source("test", zero_stage=2))
    plan = given_plan(row)
    assert plan.candidate.zero_stage == stage


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("bf16", MatmulRecipe.WORKING),
        ("fp16/bf16 mixed (not stated)", MatmulRecipe.WORKING),
        ("fp8", MatmulRecipe.FP8_DELAYED),
        ("fp8-cs", MatmulRecipe.FP8_CURRENT),
        ("fp8-mx", MatmulRecipe.MXFP8),
        ("nvfp4", MatmulRecipe.NVFP4),
    ],
)
def test_recipes_are_read_from_their_names(tmp_path: Path, text: str, recipe: MatmulRecipe) -> None:
    workload = given_plan(run(tmp_path, precision=text)).request.workload
    assert isinstance(workload, TrainingWorkload) and workload.matmul is recipe


def test_fp8_products_shorten_a_step(tmp_path: Path) -> None:
    cells = {"gpu": "H100-SXM-80GB", "dp": "8", "tp": "1", "pp": "1"}
    plain, fp8 = (predict_run(run(tmp_path, **cells, precision=text)).step_time_s for text in ("bf16", "fp8"))
    assert 0.5 * plain < fp8 < 0.85 * plain


MOE = {"model": "Qwen3_30B_a3B", "arch": "moe", "n_experts": "128", "gpu": "H100-SXM-80GB", "tp": "1", "pp": "1", "dp": "8"}
NO_SHAPE = dict.fromkeys(("n_layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")


def test_published_models_may_be_named_without_their_shape(tmp_path: Path) -> None:
    plan = given_plan(run(tmp_path, **MOE, **NO_SHAPE, ep="8"))
    assert plan.request.model.parameters() == 30_532_122_624
    assert plan.candidate.mesh.ep == 8
    whole, spread = (predict_run(run(tmp_path, **MOE, **NO_SHAPE, ep=ep)).peak_memory_gb for ep in ("1", "8"))
    assert spread < 0.5 * whole


def test_recipes_say_how_rows_exchange_tokens_and_what_else_they_train(tmp_path: Path) -> None:
    """Of one row in three releases: exchanges shown, then under another micro-batch; GB in a device's name is no GB200."""
    row = {**MOE, **NO_SHAPE, "source_id": "mbridge_pretrain", "ep": "8", "precision": "mxfp8", "global_batch": "512"}
    old, new, hopper = (
        measured(tmp_path, **{**row, "gpu": gpu, "notes": f"release {release}; a page"}).run
        for gpu, release in (("GB200", "26.04"), ("GB200", "26.08"), ("H100-SXM-80GB", "26.08"))
    )
    assert [each.reading.expert_overlap for each in (old, new, hopper)] == [None, ExpertOverlap.BATCH, None]
    assert given_plan(new).candidate.expert_overlap is ExpertOverlap.BATCH
    assert new.implementation.host is HostPath.CUDA_GRAPHS and old.implementation.host is None
    assert given_plan(old).request.workload.dispatch is TokenDispatch.ONCE_A_NODE
    assert predict_run(new).step_time_s < 0.85 * predict_run(old).step_time_s
    piped = {**row, "gpu": "GB200", "notes": "release 26.08", "dp": "4", "pp": "2", "ep": "4"}
    with pytest.raises(NotPredictedError, match="exchanges under another of 128 micro-batches, 1F1B over 2 stages"):
        given_plan(measured(tmp_path, **piped).run)
    told = RowRule("a test", mtp_layers=1, dispatch=TokenDispatch.ONCE_A_NODE)
    table = write_table(tmp_path / "own.csv", {"source_id": "own"})
    of_rule = read_measured_runs(table, Sources(sources={"own": Source("a test", rows=(told,))}))[0].run
    assert mtp_layers_of(given_plan(of_rule).request.model) == 1


def test_parameters_are_those_of_the_shape(tmp_path: Path) -> None:
    assert model_graph(run(tmp_path)).parameters() == 8_030_261_248  # Llama-3.1-8B
    gpt = run(tmp_path, arch="dense-gelu", hidden="1600", n_layers="48", heads="25", kv_heads="25", ffn_hidden="6400",
              vocab="50257", seq_len="1024")  # fmt: skip
    assert model_graph(gpt).parameters() == 1_557_611_200  # GPT-2 XL
    unfused = replace(gpt, implementation=UNFUSED)
    assert given_plan(replace(unfused, gpu="A100-SXM-80GB", tp=1, dp=8, pp=1)).request.model.parameters() == 1_557_611_200


def test_unfused_attention_keeps_five_bytes_a_score(tmp_path: Path) -> None:
    """Korthikanti et al., MLSys'23, section 4.1: 34 s b h + 5 a s^2 b bytes a layer with dropout; 11 s b h of it attention."""
    s, h, a = 2048, 6144, 64
    row = run(tmp_path, arch="dense-gelu", hidden=str(h), heads=str(a), kv_heads=str(a), ffn_hidden=str(4 * h), n_layers="2",
              seq_len=str(s), flash_attention="0")  # fmt: skip
    graph = given_plan(replace(row, implementation=UNFUSED)).request.model
    sizes = {**graph.dims, BATCH: 1, SEQ: s}
    block = graph.block("layer")
    kept = {name for operator in block.operators for name in operator.saved}
    tensors = {t.name: t for operator in block.operators for t in (*operator.inputs, *operator.outputs)}
    assert sum(2 * tensors[name].elements(sizes) for name in kept) == 34 * s * h + 5 * a * s * s


def test_deferred_gradients_of_the_head_keep_those_of_the_logits(tmp_path: Path) -> None:
    given = {"source_id": "megatron_ci_dense", "global_batch": "4", "pp": "2", "tp": "4", "vocab": "32000"}
    at_once, deferred = (
        predict_run(run(tmp_path, **given, notes=notes)) for notes in ("", "gpt3_defer_embedding_wgrad_compute")
    )
    # Three micro-batches before the last, on the last rank in units of 1e9.
    assert deferred.peak_memory_gb - at_once.peak_memory_gb == pytest.approx(3 * 4096 * (4096 + 8000) * 2 / 1e9)
    assert deferred.step_time_s == at_once.step_time_s


def test_a_softmax_step_by_step_keeps_six_bytes_a_score(tmp_path: Path) -> None:
    """The softmax in fp32, and in 16 bits as the product with the values reads it, where the fused one keeps the latter."""
    fused, steps = (
        predict_run(run(tmp_path, source_id="aleph_layouts", flash_attention="0", kv_heads="32", notes=f"kernel={kernel}"))
        for kernel in ("fused", "torch")
    )
    # Two stages of 16 layers, 2 micro-batches at once on the first; 8 heads a rank.
    scores = 2 * 16 * (32 // 4) * 4096**2
    assert steps.peak_memory_gb - fused.peak_memory_gb > 4 * scores / 2**30
    assert steps.step_time_s > 1.1 * fused.step_time_s


def test_gradients_summed_whole_in_fp32_take_four_times_a_scatter_in_16_bits(tmp_path: Path) -> None:
    row = run(tmp_path, source_id="simumax_b200", dp="8", tp="1", pp="1", zero_stage_or_fsdp="1")
    scattered, whole = (
        costed_run(replace(row, implementation=StatedImplementation(reduction=reduction)))
        for reduction in (GradientReduction.AFTER_BACKWARD, GradientReduction.IN_FP32_AFTER_BACKWARD)
    )
    costs = scattered.costs
    state = costs.stage_kinds(scattered.decision.candidate)[0].topology.state
    gradients = costs.model.parameters() * DType.FP32.size_bytes
    more_s = collective_s(Collective.ALL_REDUCE, gradients, state) - collective_s(Collective.REDUCE_SCATTER, gradients, state)
    assert whole.cost.step_time_s - scattered.cost.step_time_s == pytest.approx(more_s, rel=0.05)


def test_a_row_of_the_survey_s_mamba_is_predicted(tmp_path: Path) -> None:
    row = measured(tmp_path, arch="mamba2 state=64 ngroups=8 expand=2 chunk=64", n_layers="16", hidden="2048", heads="",
                   kv_heads="", ffn_hidden="4096", tp="1", dp="8", pp="1")  # fmt: skip
    assert predict_run(row.run).step_time_s > 0


def test_adapters_are_trained_faster_and_in_less_memory(tmp_path: Path) -> None:
    notes = ("SFT Performance", "LoRA Performance")
    whole, adapters = (predict_run(run(tmp_path, source_id="mbridge_sftlora", notes=each)) for each in notes)
    assert 0.6 * whole.step_time_s < adapters.step_time_s < 0.9 * whole.step_time_s
    assert adapters.peak_memory_gb < 0.7 * whole.peak_memory_gb


def test_a_source_that_recomputes_where_needed_does_so_only_there(tmp_path: Path) -> None:
    def seconds(source: str, recompute: str, **plan: str) -> float:
        return predict_run(run(tmp_path, source_id=source, recompute=recompute, **plan)).step_time_s

    fits, needs = {"micro_batch": "1"}, {"micro_batch": "32"}
    assert seconds("automodel_lora", "", **fits) == seconds("automodel_lora", "none", **fits)
    assert seconds("automodel_lora", "", **needs) == seconds("automodel_lora", "full", **needs)
    assert seconds("nemo2407", "", **needs) == seconds("nemo2407", "none", **needs)


def test_survey_mamba_is_read_as_its_vendors_scripts_run_it(tmp_path: Path) -> None:
    """Mixers alone, NVIDIA's Mamba-2 vocabulary, sequence parallelism and a scan without fused kernels."""
    given = given_plan(run(tmp_path, source_id="seed_ascend", **MAMBA, tp="2", dp="2", pp="2"))
    assert given.request.model.dims["vocab"] == 256_000
    assert given.request.model.layers.count("layer") == 16
    assert not any("mlp" in op.name for block in given.request.model.blocks for op in block.operators)
    assert given.candidate.boundary == sharded(SEQ)
    stated = given.request.workload.implementation
    assert stated is not None and stated.scan is ScanKernels.STEP_BY_STEP


def test_a_large_vocabulary_slows_the_last_stage(tmp_path: Path) -> None:
    """Twice the stages halve the layers of each, not the head: the survey's Mamba-1B gets little faster a micro-batch."""
    by_pp = {
        pp: predict_run(run(tmp_path, source_id="seed_ascend", **MAMBA, tp="1", dp=str(8 // pp), pp=str(pp))) for pp in (2, 8)
    }
    per_microbatch_s = {pp: found.step_time_s / (64 // (8 // pp)) for pp, found in by_pp.items()}
    assert per_microbatch_s[8] > per_microbatch_s[2] / 2


MAMBA = {
    "n_layers": "16",
    "hidden": "2048",
    "heads": "",
    "kv_heads": "",
    "ffn_hidden": "4096",
    "vocab": "",
    "gpu": "Ascend-910B",
    "gpu_mem_gb": "60",
    "arch": "mamba2 state=64 ngroups=8 expand=2 chunk=64",
}


def test_gathered_logits_take_time_and_memory_on_every_rank(tmp_path: Path) -> None:
    split, gathered = (
        predict_run(run(tmp_path, source_id=source, tp="8", dp="1", pp="1", zero_stage_or_fsdp="1", micro_batch="8"))
        for source in ("internevo", "aleph_layouts")
    )
    # Seven eighths more of 12 bytes for each of 8 x 4096 x 128,256 logits; norms of the one are fused.
    assert gathered.peak_memory_gb - split.peak_memory_gb > 7 / 8 * 12 * 8 * 4096 * 128256 / 2**30
    assert gathered.step_time_s > split.step_time_s
