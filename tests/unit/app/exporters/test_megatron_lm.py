"""Arguments of Megatron-LM, and the model that megatron-core builds from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.launchers.megatron_core import (
    hyperparameter_notes,
    hyperparameter_words,
    pipeline_layout,
    vocabulary_multiple,
)
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.resolve import NoFiles, read_model
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.units import DType
from meshwright.solver.answer.stage import Axes
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import Hyperparameters
from meshwright.solver.problem.launchers.decoders import decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.megatron_lm import expected_parameters, question
from tests.unit.app.exporters.plans import arguments, cluster, flags, interleaved, training
from tests.unit.app.exporters.real_tools import ask


def test_equal_stages_need_no_layout_and_uneven_ones_get_it() -> None:
    assert "--pipeline-model-parallel-layout" not in flags(export(*training(pp=4), "megatron-lm"))
    uneven = flags(export(*training(pp=4, layers=[7, 9, 9, 7]), "megatron-lm"))
    assert uneven["--pipeline-model-parallel-layout"] == ("Et*7|t*9|t*9|t*7L",)


def test_virtual_stages_stand_in_the_layout_in_order_of_the_model() -> None:
    plan, request = training(pp=2)
    given = flags(export(interleaved(plan, [(9, 8), (8, 9)]), request, "megatron-lm"))
    assert given["--pipeline-model-parallel-layout"] == ("Et*8|t*8|t*8|t*8L",)
    assert given["--pipeline-model-parallel-size"] == ("2",)


def test_schedules_that_megatron_has_not_are_refused() -> None:
    plan, request = training(pp=2)
    with pytest.raises(ExportError, match="zb-v"):
        export(interleaved(plan, [(9, 9), (8, 8)], schedule="zb-v"), request, "megatron-lm")


def test_experts_get_their_flags() -> None:
    graph = read_huggingface_config(
        {
            "model_type": "mixtral",
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 512,
            "vocab_size": 1024,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        name="mixtral",
    )
    request = TrainingRequest(
        graph, cluster(1), TrainingWorkload("training", 64, 1024), search=Search(ep=(4,), tp=(2,), pp=(1,))
    )
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    given = flags(export(plan, request, "megatron-lm"))
    assert given["--num-experts"] == ("8",)
    assert given["--moe-router-topk"] == ("2",)
    assert given["--expert-model-parallel-size"] == ("4",)
    assert given["--expert-tensor-parallel-size"] == ("2",)
    assert "--sequence-parallel" in given
    assert "--moe-layer-freq" not in given
    request = replace(request, search=replace(request.search, etp=(1,)))
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flags(export(plan, request, "megatron-lm"))["--expert-tensor-parallel-size"] == ("1",)
    # Experts alone have copies, so they alone are sharded.
    alone = replace(request.search, tp=(8,), dp=(1,), cp=(1,), pp=(1,), ep=(4,), zero_stages=(1,))
    request = replace(request, search=alone)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert "--use-distributed-optimizer" in flags(export(plan, request, "megatron-lm"))


def test_dispatch_and_limited_routing_get_their_flags() -> None:
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "vocab_size": 1024,
    }
    graph = read_huggingface_config(config, name="small-v3")
    workload = TrainingWorkload("training", 64, 1024, dispatch=TokenDispatch.ONCE_A_NODE)
    search = Search(ep=(4,), tp=(1,), cp=(1,), pp=(1,), microbatch=(1,), zero_stages=(1,))
    request = TrainingRequest(graph, cluster(1), workload, search=search)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    given = flags(export(plan, request, "megatron-lm"))
    assert given["--moe-token-dispatcher-type"] == ("flex",) and "--moe-enable-deepep" in given
    assert given["--moe-router-num-groups"] == ("4",) and given["--moe-router-group-topk"] == ("2",)
    assert "--overlap-moe-expert-parallel-comm" not in given
    hidden = replace(request, search=replace(search, expert_overlap=(ExpertOverlap.BATCH,)))
    hiding = export(plan_training(hidden, stop=never_stop, progress=ignore_progress), hidden, "megatron-lm")
    assert "--overlap-moe-expert-parallel-comm" in flags(hiding)
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" not in hiding.command
    read = read_command(hiding.command)
    assert isinstance(read, StatedTraining) and read.expert_overlap is ExpertOverlap.BATCH
    greedy = read_huggingface_config({**config, "model_type": "deepseek_v2", "n_group": 4, "topk_group": 2}, name="v2")
    assert "expert_groups" not in greedy.dims, "DeepSeek-V2 chooses greedily unless it says otherwise"


def test_chunked_products_are_userbuffers_with_serial_launches() -> None:
    chunked, plain = (
        export(*training(dp=2, tp=4, sequence_parallel=True, tp_overlap=way), "megatron-lm")
        for way in (TpOverlap.CHUNKED, TpOverlap.EXPOSED)
    )
    assert "--tp-comm-overlap" in flags(chunked)
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in chunked.command
    assert "--tp-comm-overlap" not in flags(plain)


def test_replicas_of_neighbours_are_a_mapping_that_asks_for_one_dp() -> None:
    mapped, usual = (export(*training(dp=4, tp=2, pp=2, rank_order=order), "megatron-lm") for order in reversed(RankOrder))
    assert "--use-tp-pp-dp-mapping" in flags(mapped)
    assert "--use-tp-pp-dp-mapping" not in flags(usual)
    with pytest.raises(ExportError, match="dp outermost with dp 2, 4 of experts"):
        export(*training(dp=2, cp=2, pp=2, rank_order=RankOrder.DP_OUTERMOST), "megatron-lm")


def test_stages_without_layers_keep_their_place_in_the_layout() -> None:
    assert pipeline_layout((0, 1, 31, 0)) == "E|t|t*31|L"
    assert pipeline_layout((16, 16), mtp_layers=2) == "Et*16|t*16mmL"


@pytest.mark.parametrize(
    ("zero_stage", "expected"),
    [
        (0, {"--overlap-grad-reduce": ()}),
        (1, {"--use-distributed-optimizer": (), "--overlap-param-gather": ()}),
        (2, {"--use-megatron-fsdp": (), "--data-parallel-sharding-strategy": ("optim_grads",)}),
        (3, {"--use-megatron-fsdp": (), "--data-parallel-sharding-strategy": ("optim_grads_params",)}),
    ],
)
def test_zero_stages(zero_stage: int, expected: dict[str, tuple[str, ...]]) -> None:
    given = flags(export(*training(dp=8, zero_stage=zero_stage), "megatron-lm"))
    assert expected.items() <= given.items()
    assert ("--use-distributed-optimizer" in given) == (zero_stage >= 1)
    assert ("--use-megatron-fsdp" in given) == (zero_stage >= 2)
    # arguments.py: Megatron FSDP takes this checkpoint format only, and only it may.
    assert given.get("--ckpt-format") == (("fsdp_dtensor",) if zero_stage >= 2 else None)


@pytest.mark.parametrize(
    ("ulysses", "keys", "expected"),
    [
        (1, CpKeys.RING, {"--cp-comm-type": ("p2p",)}),
        (1, CpKeys.GATHERED, {"--cp-comm-type": ("all_gather",)}),
        (4, CpKeys.RING, {"--cp-comm-type": ("a2a",)}),
        (2, CpKeys.RING, {"--cp-comm-type": ("a2a+p2p",), "--hierarchical-context-parallel-sizes": ("2", "2")}),
    ],
)
def test_context_parallelism_names_its_exchange(ulysses: int, keys: CpKeys, expected: dict[str, tuple[str, ...]]) -> None:
    plan, request = training(dp=2, cp=4)
    axes = Axes(dp=2, cp=4, ulysses=ulysses)
    stages = tuple(replace(stage, axes=axes) for stage in flat(plan).stages)
    given = flags(export(with_fields(plan, axes=axes, stages=stages, cp_keys=keys), request, "megatron-lm"))
    assert given["--context-parallel-size"] == ("4",)
    assert expected.items() <= given.items()
    assert ("--hierarchical-context-parallel-sizes" in given) == (ulysses == 2)


def test_one_data_parallel_rank_shares_no_state() -> None:
    given = flags(export(*training(tp=8), "megatron-lm"))
    assert "--overlap-grad-reduce" not in given


@pytest.mark.parametrize(
    ("layout", "serial"),
    [({"dp": 8}, False), ({"dp": 4, "tp": 2}, True), ({"dp": 4, "cp": 2}, True), ({"dp": 4, "tp": 2, "zero_stage": 3}, False)],
)
def test_device_connections_follow_validate_args(layout: dict[str, int], serial: bool) -> None:
    words = arguments(export(*training(**layout), "megatron-lm"))  # type: ignore[arg-type]
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in words) == serial


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Recompute.NONE, {}),
        (
            Recompute.SELECTIVE,
            {"--recompute-granularity": ("selective",), "--recompute-modules": ("core_attn", "layernorm")},
        ),
        (
            Recompute.FULL,
            {
                "--recompute-granularity": ("full",),
                "--recompute-method": ("uniform",),
                "--recompute-num-layers": ("1",),
            },
        ),
    ],
)
def test_recompute(mode: Recompute, expected: dict[str, tuple[str, ...]]) -> None:
    given = flags(export(*training(dp=8, recompute=(mode,)), "megatron-lm"))
    assert {name: values for name, values in given.items() if name.startswith("--recompute")} == expected


def test_modules_are_named_and_one_set_is_run_where_stages_recompute_differently() -> None:
    plan, request = training(dp=4, pp=2, recompute=(Recompute.FINE_GRAINED, Recompute.NONE))
    first, second = flat(plan).stages
    unlike = with_fields(plan, stages=(replace(first, recompute_modules="layernorm+mlp"), second))
    given = flags(export(unlike, request, "megatron-lm"))
    assert given["--recompute-granularity"] == ("selective",)
    assert given["--recompute-modules"] == ("layernorm", "mlp")
    with pytest.raises(ExportError, match="modules are layernorm"):
        export(with_fields(plan, stages=(replace(first, recompute_modules="mlp+layernorm"), second)), request, "megatron-lm")


def test_first_layers_of_each_part_are_recomputed_by_block() -> None:
    plan, request = training(dp=4, pp=2, recompute=(Recompute.FULL, Recompute.FULL))
    some = with_fields(plan, stages=tuple(replace(stage, recompute_layers=3) for stage in flat(plan).stages))
    given = flags(export(some, request, "megatron-lm"))
    assert (given["--recompute-granularity"], given["--recompute-method"]) == (("full",), ("block",))
    assert given["--recompute-num-layers"] == ("3",)
    first, second = flat(some).stages
    unlike = with_fields(some, stages=(first, replace(second, recompute_layers=4)))
    with pytest.raises(ExportError, match="all stages have the same number"):
        export(unlike, request, "megatron-lm")


def test_optimizers_and_precision() -> None:
    adam = flags(export(*training(precision=DType.BF16, gradient_dtype=DType.BF16), "megatron-lm"))
    assert adam["--optimizer"] == ("adam",)
    assert {"--bf16", "--grad-reduce-in-bf16"} <= set(adam)
    sgd = flags(export(*training(optimizer=Optimizer.SGD_MOMENTUM, precision=DType.FP32), "megatron-lm"))
    assert sgd["--optimizer"] == ("sgd",)
    assert not {"--bf16", "--fp16"} & set(sgd)
    muon = flags(export(*training(dp=2, optimizer=Optimizer.MUON), "megatron-lm"))
    assert (muon["--optimizer"], muon["--ckpt-format"]) == (("muon",), ("torch",))
    with pytest.raises(ExportError, match="ZeRO 1 beside the optimizer muon"):
        export(*training(dp=2, optimizer=Optimizer.MUON, zero_stage=1), "megatron-lm")


@pytest.mark.parametrize(
    ("vocab", "tp", "multiple"),
    [(128256, 1, 128), (128256, 8, 32), (50257, 1, 1), (50257, 2, 128), (256, 1, 128), (100, 2, 2)],
)
def test_the_vocabulary_is_padded_only_where_it_must_be(vocab: int, tp: int, multiple: int) -> None:
    assert vocabulary_multiple(vocab, tp) == multiple


def test_padding_is_said() -> None:
    result = export(*training("gpt2-xl", pp=2, tp=1, dp=1, seq_len=1024), "megatron-lm")
    assert not any("padded" in line for line in result.inexpressible)


@pytest.mark.parametrize(
    ("name", "expected", "absent"),
    [
        ("llama-3.1-8b", {"--swiglu", "--group-query-attention", "--disable-bias-linear"}, {"--qk-layernorm"}),
        (
            "gpt2-xl",
            set(),
            {"--swiglu", "--group-query-attention", "--disable-bias-linear", "--untie-embeddings-and-output-weights"},
        ),
        ("qwen3-8b", {"--qk-layernorm", "--untie-embeddings-and-output-weights"}, set()),
        ("mistral-7b", {"--window-size"}, {"--qk-layernorm"}),
    ],
)
def test_the_model_is_described(name: str, expected: set[str], absent: set[str]) -> None:
    given = set(flags(export(*training(name, seq_len=1024), "megatron-lm")))
    assert expected <= given
    assert not absent & given


@pytest.mark.parametrize(
    ("name", "words", "note"),
    [
        ("qwen3-32b", "--rotary-base 1000000, --norm-epsilon 1e-06", None),
        ("llama-3.2-1b", "--rotary-base 500000, --use-rope-scaling --rope-scaling-factor 32", None),
        ("qwen3-30b-a3b", "--moe-router-score-function softmax, --moe-aux-loss-coeff 0.001", None),
        (
            "deepseek-v3",
            "--rotary-scaling-factor 40 --mscale 1 --mscale-all-dim 1, --moe-router-score-function sigmoid, "
            "--moe-router-topk-scaling-factor 2.5, --moe-router-enable-expert-bias",
            None,
        ),
        ("gpt-oss-20b", "--moe-router-score-function softmax", "stretches its rotary positions (yarn, 32 times)"),
        ("glm-4.5-air", "", "add --moe-router-score-function"),
        ("seed-llama-1b", "", "does not state one rotary base"),
    ],
)
def test_what_the_config_says_beside_sizes_is_handed_on(name: str, words: str, note: str | None) -> None:
    """Flags that are given need no note, and what has no flag gets one."""
    graph = model(name)
    shape = decoder_shape(graph)
    said = [" ".join(map(str, part)) for part in hyperparameter_words(graph.hyperparameters, shape)]
    assert set(filter(None, words.split(", "))) <= set(said)
    notes = [n for n in hyperparameter_notes(graph.hyperparameters, shape) if "taken for even" not in n]
    assert len(notes) == 0 if note is None else any(note in told for told in notes)


def test_an_id_of_other_hyperparameters_has_none_of_the_catalogue() -> None:
    """Qwen3's checkpoints of July 2025 have the sizes of those of April, and another rotary base."""
    files = NoFiles()
    assert read_model({"huggingface": "Qwen/Qwen3-30B-A3B"}, files=files).hyperparameters is not None
    later = read_model({"huggingface": "Qwen/Qwen3-30B-A3B-Instruct-2507"}, files=files).hyperparameters
    assert later == Hyperparameters(positions=262144)


def test_learned_positions_come_with_their_table() -> None:
    given = flags(export(*training("gpt2-xl", seq_len=512), "megatron-lm"))
    assert (given["--position-embedding-type"], given["--max-position-embeddings"]) == (("learned_absolute",), ("1024",))


def test_layers_that_megatron_has_not_are_said() -> None:
    result = export(*training("gemma-2-9b"), "megatron-lm")
    said = " ".join(result.inexpressible)
    assert "4 norms" in said
    assert "attention window (full, 4096)" in said
    assert "geglu" in said


@pytest.mark.slow
def test_megatron_core_builds_the_parameters_that_the_plan_counts() -> None:
    """On every stage: weights a rank holds, exactly. Layer sizes come from the graph, which transformers confirms."""
    plans = [
        training(dp=8, zero_stage=3),
        training(dp=2, tp=2, pp=2, layers=[15, 17], sequence_parallel=True, recompute=(Recompute.SELECTIVE,)),
        training(dp=2, tp=2, pp=4, cp=2, layers=[7, 9, 9, 7], zero_stage=1, recompute=(Recompute.FULL,)),
        training("qwen3-8b", tp=4, dp=2, sequence_parallel=True, tp_overlap=TpOverlap.CHUNKED),
        training("gpt2-xl", dp=2, pp=2, seq_len=1024),
        training(dp=2, tp=2, pp=2, layers=[15, 17], rank_order=RankOrder.DP_OUTERMOST),
        training("llama-3.1-70b", tp=8, pp=2, layers=[41, 39]),
    ]
    answers = ask("megatron.core", "megatron_core.py", [question(*plan) for plan in plans])
    for (plan, _), answer in zip(plans, answers, strict=True):
        assert answer == {"parameters": expected_parameters(plan)}, plan.model


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (MatmulRecipe.WORKING, {}),
        (MatmulRecipe.FP8_DELAYED, {"--fp8-format": ("hybrid",), "--fp8-recipe": ("delayed",)}),
        (MatmulRecipe.MXFP8, {"--fp8-format": ("e4m3",), "--fp8-recipe": ("mxfp8",)}),
        (MatmulRecipe.FP8_BLOCKWISE, {"--fp8-format": ("e4m3",), "--fp8-recipe": ("blockwise",)}),
    ],
)
def test_low_precision_products(recipe: MatmulRecipe, expected: dict[str, tuple[str, ...]]) -> None:
    given = flags(export(*training(dp=8, matmul=recipe), "megatron-lm"))
    assert {name: values for name, values in given.items() if name.startswith(("--fp8", "--fp4"))} == expected


def test_a_recipe_that_megatron_lacks_is_said() -> None:
    result = export(*training(dp=8, matmul=MatmulRecipe.FP8_ROWWISE), "megatron-lm")
    assert any("for each row" in line for line in result.inexpressible)


def test_fine_grained_recompute_names_the_modules_that_the_model_has() -> None:
    given = flags(export(*training(dp=8, recompute=(Recompute.FINE_GRAINED,)), "megatron-lm"))
    assert (given["--recompute-granularity"], given["--recompute-modules"]) == (("selective",), ("layernorm",))


def test_moments_of_sixteen_bits_and_activations_in_fp8() -> None:
    given = flags(export(*training(dp=8, zero_stage=1, optimizer=Optimizer.ADAMW_BF16), "megatron-lm"))
    assert (given["--exp-avg-dtype"], given["--exp-avg-sq-dtype"]) == (("bf16",), ("bf16",))
    squeezed = export(*training(dp=8, saved_activations=SavedFormat.FP8), "megatron-lm")
    assert any("saved activations in fp8" in line for line in squeezed.inexpressible)


def test_moments_of_eight_bits() -> None:
    given = flags(export(*training(dp=8, zero_stage=1, optimizer=Optimizer.ADAMW_8BIT), "megatron-lm"))
    assert (given["--optimizer"], given["--exp-avg-dtype"], given["--exp-avg-sq-dtype"]) == (("adam",), ("fp8",), ("fp8",))
    unsharded = export(*training(dp=8, optimizer=Optimizer.ADAMW_8BIT), "megatron-lm")
    assert any("distributed optimizer" in line for line in unsharded.inexpressible)
