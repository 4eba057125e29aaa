"""Flags of torchtitan, the models it has, and what its own parser makes of the flags."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.base.solving import solve_here
from meshwright.app.launching.exporters import export
from meshwright.app.launching.launchers.torchtitan import MODELS, exported_model
from meshwright.app.models.catalog import model as catalogue_model
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, Space, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.launchers.decoders import decoder_shape
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import Search
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.plans import arguments, flags, interleaved, training
from tests.unit.app.exporters.real_tools import ask


def given(plan: Plan, request: PlanRequest) -> dict[str, tuple[str, ...]]:
    return dict(flags(export(plan, request, "torchtitan")))


def said(plan: Plan, request: PlanRequest) -> str:
    return " ".join(export(plan, request, "torchtitan").inexpressible)


@pytest.mark.parametrize(
    ("zero_stage", "replicate", "shard", "reshard"),
    [(0, "8", "1", "never"), (1, "1", "8", "never"), (2, "1", "8", "never"), (3, "1", "8", "always")],
)
def test_zero_stages_are_degrees_of_fsdp(zero_stage: int, replicate: str, shard: str, reshard: str) -> None:
    plan = training(dp=8, zero_stage=zero_stage)
    assert given(*plan)["--parallelism.data_parallel_replicate_degree"] == (replicate,)
    assert given(*plan)["--parallelism.data_parallel_shard_degree"] == (shard,)
    assert given(*plan)["--parallelism.fsdp_reshard_after_forward"] == (reshard,)
    assert ("ZeRO-1" in said(*plan)) == (zero_stage == 1)


def test_a_pipeline_splits_the_local_batch() -> None:
    piped = given(*training(dp=2, pp=2, microbatch=2))
    assert piped["--training.local_batch_size"] == ("32",)
    assert piped["--parallelism.pipeline_parallel_microbatch_size"] == ("2",)
    assert "--training.disable_cuda_graphs" in piped
    flat = given(*training(dp=8, microbatch=2))
    assert flat["--training.local_batch_size"] == ("2",)
    assert "--training.disable_cuda_graphs" not in flat


def test_stage_borders_are_module_names() -> None:
    parts = given(*training(pp=2, layers=[1, 31]))["--parallelism.module_fqns_per_model_part"]
    assert parts[0] == "tok_embeddings,layers.0"
    assert parts[1].startswith("layers.1,layers.2,")
    assert parts[1].endswith("layers.31,norm,lm_head")


def test_a_v_shaped_schedule_lists_its_parts_in_order_of_the_model() -> None:
    plan, request = training(pp=2)
    folded = interleaved(plan, [(9, 7), (8, 10)], schedule="zb-v")
    given = flags(export(folded, request, "torchtitan"))
    assert given["--parallelism.pipeline_parallel_schedule"] == ("ZBVZeroBubble",)
    assert [len(part.split(",")) for part in given["--parallelism.module_fqns_per_model_part"]] == [9, 8, 10, 8]


def test_sequence_parallelism_is_on_unless_refused() -> None:
    off = "--parallelism.no-enable_sequence_parallel"
    assert off in given(*training(tp=2, dp=2))
    assert off not in given(*training(tp=2, dp=2, sequence_parallel=True))


def test_chunked_products_are_asynchronous_tensor_parallelism_and_compiled() -> None:
    named = {"--compile.enable", "--compile.enable_async_tensor_parallel"}
    layout = {"tp": 2, "dp": 2, "sequence_parallel": True}
    assert named <= given(*training(**layout, tp_overlap=TpOverlap.CHUNKED)).keys()
    assert not named & given(*training(**layout)).keys()


@pytest.mark.parametrize(("mode", "name"), [(m, m.value) for m in Recompute if m is not Recompute.FINE_GRAINED])
def test_checkpointing_is_the_last_word(mode: Recompute, name: str) -> None:
    plan = training(recompute=(mode,))
    assert arguments(export(*plan, "torchtitan"))[-1] == f"activation-checkpoint:{name}"
    assert ("selective recompute" in said(*plan)) == (mode is Recompute.SELECTIVE)


def test_fine_grained_recompute_is_refused() -> None:
    with pytest.raises(ExportError, match="torchtitan: fine-grained recompute; it can't recompute norms alone"):
        export(*training(recompute=(Recompute.FINE_GRAINED,)), "torchtitan")


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"dp": 2, "pp": 2, "rank_order": RankOrder.DP_OUTERMOST}, "it has pp outermost alone"),
        ({"tp": 16}, "8 key/value heads do not divide by tp 16"),
        ({"name": "gemma-2-9b", "dp": 4}, "a feed-forward network not of SwiGLU"),
        ({"name": "qwen2.5-7b", "dp": 4}, "biases of q, k and v"),
        ({"optimizer": Optimizer.MUON}, "muon; it has adamw"),
        ({"precision": DType.FP16}, "fp16; it trains in bf16 and fp32"),
    ],
)
def test_what_torchtitan_has_not_is_refused(layout: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        export(*training(**layout), "torchtitan")


def test_sixteen_bit_gradients_are_said_to_be_kept_in_fp32() -> None:
    assert "bf16 gradients" in said(*training(dp=8, gradient_dtype=DType.BF16))


REGISTERED = [model for model in MODELS if model.is_bf16]
# Of the other, torchtitan's own configuration needs torchao.
RESIZED = ("qwen3-8b", "llama-3.1-405b", "llama-3.2-1b", "mistral-small-24b", "seed-llama-7b")


@pytest.mark.parametrize("name", RESIZED)
def test_a_model_that_is_not_registered_comes_with_a_configuration_of_its_sizes(name: str) -> None:
    result = export(*training(name, dp=2), "torchtitan")
    assert set(result.files) == {"meshwright_plan.py"}
    compile(result.files["meshwright_plan.py"], "meshwright_plan.py", "exec")
    assert flags(result)["--module"] == ("meshwright_plan",)


def test_the_configuration_of_an_export_is_read_back() -> None:
    (text,) = export(*training("llama-3.2-1b", dp=2), "torchtitan").files.values()
    found = exported_model(text)
    assert found is not None and found.builds(decoder_shape(catalogue_model("llama-3.2-1b")))
    assert exported_model("x = 1") is None


def test_a_hostile_name_runs_nothing_in_the_configuration() -> None:
    name = '"}; raise SystemExit; x = {"@MODULE@'
    graph = replace(catalogue_model("qwen3-8b"), name=name)
    text = export(*training(graph=graph, dp=2), "torchtitan").files["meshwright_plan.py"]
    (assigned,) = (each.value for each in ast.parse(text).body if isinstance(each, ast.Assign))
    assert ast.literal_eval(assigned)["name"] == name


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma-2-9b", {}),
        ("qwen2.5-7b", {}),
        ("llama-3.1-8b", {"precision": DType.FP16}),
        ("llama-3.1-8b", {"optimizer": Optimizer.SGD_MOMENTUM}),
    ],
)
def test_what_its_export_refuses_of_a_request_is_refused_when_it_is_planned(name: str, change: dict[str, Any]) -> None:
    _, request = training(name, dp=8, **change)
    search = Search(space=Space.LAUNCHABLE, launcher=Launcher.TORCHTITAN)
    with pytest.raises(WorkloadError, match=r"torchtitan has no|none of these optimizers"):
        solve_here(replace(request, search=search))


def test_a_planned_model_is_exported() -> None:
    """Qwen3-8B, which torchtitan has sizes of and no configuration."""
    _, request = training("qwen3-8b", dp=8)
    request = replace(request, search=Search(space=Space.LAUNCHABLE, launcher=Launcher.TORCHTITAN, dp=(8,), tp=(1,), pp=(1,)))
    assert flags(export(solve_here(request), request, "torchtitan"))["--module"] == ("meshwright_plan",)


def parsed_plans() -> list[tuple[Plan, PlanRequest]]:
    """Plans of every kind of flag."""
    plan, request = training(dp=8, zero_stage=3)
    away = Offload(optimizer=1.0, weights=1.0, gradients=1.0)
    return [
        training(dp=8, zero_stage=3, recompute=(Recompute.FULL,)),
        training(dp=2, tp=2, pp=2, layers=[15, 17], zero_stage=2, sequence_parallel=True, microbatch=2),
        training(dp=2, tp=2, cp=2, zero_stage=0, recompute=(Recompute.SELECTIVE,)),
        training("qwen3-32b", tp=8, dp=2),
        training(dp=2, tp=2, sequence_parallel=True, tp_overlap=TpOverlap.CHUNKED),
        (with_fields(plan, stages=tuple(replace(stage, offload=away) for stage in flat(plan).stages)), request),
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Its answers to the plans, then to the registered models; asked once, since torchtitan takes seconds to load."""
    folder, cases = tmp_path_factory.mktemp("configured"), []
    for place, (plan, request) in enumerate([*parsed_plans(), *(training(name, dp=8) for name in RESIZED)]):
        result = export(plan, request, "torchtitan")
        words = arguments(result)
        words = words[words.index("torchtitan.train") + 1 :]
        for text in result.files.values():
            # A module each, since one process reads them all.
            (folder / f"planned_{place}.py").write_text(text, encoding="utf-8")
            words[words.index("meshwright_plan")] = f"planned_{place}"
        cases.append({"args": words, "world": plan.devices})
    cases += [{"args": ["--module", model.module, "--config", model.config], "world": 8} for model in REGISTERED]
    answered: list[dict[str, Any]] = ask("torchtitan", "torchtitan_args.py", cases, search_path=folder)
    assert len(answered) == len(cases)
    return answered


@pytest.mark.slow
def test_torchtitan_accepts_the_flags_and_means_the_same(answers: list[dict[str, Any]]) -> None:
    answers = answers[:6]
    assert [answer.get("error") for answer in answers] == [None] * 6
    expected_dims = [[1, 8, 1, 1, 1], [1, 2, 1, 2, 2], [2, 1, 2, 2, 1], [2, 1, 1, 8, 1], [2, 1, 1, 2, 1], [1, 8, 1, 1, 1]]
    assert [answer["dims"] for answer in answers] == expected_dims
    assert [answer["batch"] for answer in answers[:3]] == [[1, 64, 1], [32, 64, 2], [1, 64, 1]]
    assert [answer["sequence_parallel"] for answer in answers[1:3]] == [True, False]
    assert [len(part) for part in answers[1]["stages"]] == [16, 19]
    assert [answer["checkpoint"] for answer in answers[:3]] == ["FullAC.Config", None, "SelectiveAC.Config"]
    assert [answer["reshard"] for answer in answers[:3]] == ["always", "never", "never"]
    assert [answer["cpu_offload"] for answer in answers] == [False] * 5 + [True]
    assert [answer["compile"] for answer in answers] == 4 * [False] + [True, False]
    assert [answer["asynchronous"] for answer in answers] == 4 * [False] + [True, False]


@pytest.mark.slow
def test_configurations_of_other_models_have_their_sizes_and_parameters(answers: list[dict[str, Any]]) -> None:
    for name, answer in zip(RESIZED, answers[6 : 6 + len(RESIZED)], strict=True):
        assert answer.get("error") is None, name
        graph = catalogue_model(name)
        shape = decoder_shape(graph)
        sizes = [shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.vocab]
        assert (answer["sizes"], answer["tied"]) == (sizes, shape.tied), name
        assert answer["parameters"] == graph.parameters(), name


def test_registered_models_have_the_sizes_we_say(answers: list[dict[str, Any]]) -> None:
    for model, answer in zip(REGISTERED, answers[-len(REGISTERED) :], strict=True):
        sizes = [model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab]
        assert (answer["sizes"], answer["tied"]) == (sizes, model.tied), model.config
