"""The implementation that a request states: over the launcher's, by profile and by field."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.catalog import model
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.implementations.profile import implementation_profile, implementation_profiles
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    HAND_FUSED,
    AdapterTarget,
    Dropout,
    Implementation,
    LossKernels,
    StateBuffers,
    TrainedWeights,
    VectorKernels,
)
from meshwright.costmodels.model.memory_law import GENERIC_LAW, MemoryLaw
from meshwright.costmodels.units import GIB, DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.api import predict, solve
from meshwright.solver.blocks.recompute import kept_bytes
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.implementation import implementation_of, launcher_implementation
from tests.support.flat_plans import flat
from tests.support.requests_given import resolved
from tests.unit.solver.implementation import request_of


def planned(implementation: dict[str, Any] | None, **search: Any) -> Plan:
    return solve(request_of(implementation, **search), stop=never_stop, progress=ignore_progress)


def step_s(implementation: dict[str, Any] | None, **search: Any) -> float:
    found = planned(implementation, **search).predicted
    assert found is not None and found.step_time_s is not None
    return found.step_time_s


def peak_bytes(implementation: dict[str, Any] | None, **given: Any) -> float:
    found = planned(implementation, **given).predicted
    assert found is not None
    return found.peak_memory_bytes


def test_a_request_can_state_every_field_and_no_other() -> None:
    stated = {field.name for field in fields(StatedImplementation)}
    assert stated == {field.name for field in fields(Implementation)} | {"profile"}
    assert all(field.default is None for field in fields(StatedImplementation))


@pytest.mark.parametrize("name", [field.name for field in fields(Implementation)])
def test_a_stated_field_takes_the_place_of_the_launchers(name: str) -> None:
    other = _another(name)
    whole = StatedImplementation(**{name: other}).over(HAND_FUSED)
    assert whole == replace(HAND_FUSED, **{name: other})


def _another(name: str) -> Any:
    default = next(field.default for field in fields(Implementation) if field.name == name)
    assert default is not MISSING
    if isinstance(default, int):
        return default + 1
    if isinstance(default, MemoryLaw):
        return replace(default, activations=default.activations + 1.0)
    if isinstance(default, tuple):
        return (AdapterTarget.Q,)
    kind = LossKernels if default is None else type(default)
    return next(value for value in kind if value is not default)


def test_every_profile_gives_the_basis_of_each_fact() -> None:
    profiles = implementation_profiles()
    assert len(profiles) > 10
    for profile in profiles:
        differing = {f.name for f in fields(Implementation) if getattr(profile.implementation, f.name) != f.default}
        assert differing <= set(profile.bases), profile.name
        assert profile.framework and all(profile.bases.values()), profile.name


def test_the_launcher_picks_the_profile() -> None:
    names = {
        Launcher.MEGATRON_LM: "megatron-core-0.20",
        Launcher.MEGATRON_BRIDGE: "megatron-core-0.20",
        Launcher.NEMO: "megatron-core-0.20",
        Launcher.DEEPSPEED: "deepspeed-0.19",
        Launcher.TORCHTITAN: "torchtitan-0.3",
        Launcher.PYTORCH: "torchtitan-0.3",
        Launcher.NANOTRON: "torchtitan-0.3",
        Launcher.MAXTEXT: "maxtext",
    } | dict.fromkeys(
        (Launcher.HF_TRAINER, Launcher.ACCELERATE, Launcher.TRL, Launcher.AXOLOTL, Launcher.LLAMA_FACTORY), "hf-trainer"
    )
    assert set(names) == set(TRAINERS)
    for launcher, name in names.items():
        assert launcher_implementation(Search(launcher=launcher)) == implementation_profile(name).implementation
        workload = request_of({"dropout": "masked"}, launcher=launcher.value).workload
        expected = implementation_profile(name).implementation
        found = implementation_of(workload, Search(launcher=Launcher.MEGATRON_LM))
        assert replace(found, stated_loss=None) == replace(expected, stated_loss=None, dropout=Dropout.MASKED)
        assert found.loss is expected.loss
    free = request_of({"kernels": "eager"}, space=Space.FREE.value).workload
    found = implementation_of(free, Search(space=Space.FREE))
    expected = launcher_implementation(Search(space=Space.FREE))
    assert replace(found, stated_loss=None) == replace(expected, kernels=VectorKernels.EAGER)


@pytest.mark.parametrize("launcher", TRAINERS)
def test_the_free_space_has_the_kernels_of_the_launcher(launcher: Launcher) -> None:
    free, launchable = (launcher_implementation(Search(launcher=launcher, space=space)) for space in Space)
    free_of_communication = {"tensor_overlap", "scan_over_ranks"}
    differing = {field.name for field in fields(free) if getattr(free, field.name) != getattr(launchable, field.name)}
    assert differing <= free_of_communication


def test_a_request_without_an_implementation_has_none_in_its_document() -> None:
    assert "implementation" not in request_document(request_of(None))["workload"]
    stated = request_document(request_of({"profile": "composer"}))["workload"]["implementation"]
    assert stated["kernels"] == "eager" and None not in stated.values()


@pytest.mark.parametrize(
    "implementation",
    [{}, {"profile": "composer"}, {"attention_kernels": "step-by-step", "dropout": "masked", "head_gradients": "deferred"}],
)
def test_a_resolved_request_reads_back_to_itself(implementation: dict[str, Any]) -> None:
    request = request_of(implementation)
    document = request_document(request)
    assert resolved(document) == request
    assert request_document(resolved(document)) == document


def test_a_stored_request_outlives_its_profile() -> None:
    document = request_document(request_of({"profile": "composer"}))
    document["workload"]["implementation"]["profile"] = "a profile of the past"
    workload = resolved(document).workload
    assert not isinstance(workload, str)
    found = request_of({"profile": "composer"}).workload.implementation
    assert found is not None and workload == replace(
        request_of(None).workload, implementation=replace(found, profile="a profile of the past")
    )


def test_stating_what_the_launcher_runs_changes_no_plan() -> None:
    plain, stated = planned(None), planned({"profile": "megatron-core-0.20"})
    assert plain.predicted == stated.predicted and plain.layout == stated.layout


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(DocumentError) as caught:
        request_of({"profile": "megatron"})
    assert caught.value.fields[0].field == "workload.implementation"
    assert "megatron-core-0.20" in str(caught.value)
    with pytest.raises(WorkloadError, match="unknown implementation profile"):
        implementation_profile("megatron")


EVERY_VALUE = [{"profile": profile.name} for profile in implementation_profiles()] + [
    {name: word.value}
    for name, hint in get_type_hints(StatedImplementation).items()
    for kind in get_args(hint)
    if isinstance(kind, type) and issubclass(kind, StrEnum)
    for word in kind
]


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("implementation", EVERY_VALUE, ids=str)
def test_the_checker_takes_plans_of_every_implementation(implementation: dict[str, Any], recompute: str) -> None:
    """`solve` raises where the checker refuses."""
    assert planned(implementation, recompute=[recompute]).predicted is not None


def test_attention_without_a_fused_kernel_is_slower_and_keeps_its_scores() -> None:
    fused, unfused, stepwise = ({"attention_kernels": kernels} for kernels in ("fused", "unfused", "step-by-step"))
    assert step_s(fused) < step_s(unfused) < step_s(stepwise)
    # 16 layers a stage, two micro-batches on the first; 16 of 32 heads a rank, 2 bytes a score.
    scores_bytes = 2 * 16 * 16 * 4096**2 * 2
    assert peak_bytes(unfused) - peak_bytes(fused) > scores_bytes
    request = request_of(unfused, cp=[2], dp=[1])
    assert not solve(request, stop=never_stop, progress=ignore_progress).feasible


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_attention_in_fp8_goes_with_a_recipe_and_takes_less_memory(recompute: str) -> None:
    fp8: dict[str, Any] = {"attention_format": "fp8"}
    assert step_s(fp8, recompute=[recompute]) == step_s({}, recompute=[recompute])
    given: dict[str, Any] = {"matmul": "fp8-delayed", "recompute": [recompute]}
    # Where attention runs again, only what one layer makes again for that is smaller.
    assert (peak_bytes({}, **given) - peak_bytes(fp8, **given) > GIB) == (recompute == "none")
    assert step_s(fp8, **given) != step_s({}, **given)


def weights_bytes(implementation: dict[str, Any], **given: Any) -> float:
    return sum(stage.memory.weights_bytes for stage in flat(planned(implementation, **given)).stages)


@pytest.mark.parametrize(("search", "ranks"), [({"zero_stages": [1]}, 2), ({"zero_stages": [3], "pp": [1], "dp": [4]}, 8)])
def test_frozen_weights_lie_once_in_fp8_beside_a_recipe(search: dict[str, Any], ranks: int) -> None:
    frozen, fp8 = ({"trained": "adapters", "frozen_weights": form} for form in ("working", "fp8"))
    assert weights_bytes(fp8, **search) == weights_bytes(frozen, **search)
    given: dict[str, Any] = {"matmul": "fp8-delayed", **search}
    assert weights_bytes({"frozen_weights": "fp8"}, **given) == weights_bytes({}, **given)
    # One byte less for each weight of 32 layers over the tp ranks, under ZeRO-3 over the dp ranks besides.
    layers = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) / ranks
    assert weights_bytes(frozen, **given) - weights_bytes(fp8, **given) == pytest.approx(layers, rel=1e-3)


def test_adapters_beside_some_products_take_less_time() -> None:
    def adapters(*targets: str) -> dict[str, Any]:
        return {"trained": "adapters", "adapter_targets": [*targets]}

    attention, all_ = adapters("q_proj", "k_proj", "v_proj", "o_proj"), adapters()
    assert step_s(adapters("q_proj")) <= step_s(attention) < step_s(all_)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_inputs_of_gated_activations_kept_in_fp8_take_half(recompute: str) -> None:
    def first(implementation: dict[str, Any]) -> Stage:
        return flat(planned(implementation, recompute=[recompute], schedules=["1f1b"])).stages[0]

    working, fp8 = first({}), first({"gated_inputs": "fp8"})
    assert working.blocks == fp8.blocks
    layers = sum(span.count for span in fp8.blocks if span.block == "layer")
    # A byte less of both inputs, split over two tp ranks, of two micro-batches; under full recomputation of one layer at work.
    less = 0 if recompute == "full" else 2 * layers * 4096 * 14336
    assert working.memory.activations_bytes - fp8.memory.activations_bytes == pytest.approx(less)


def test_products_without_an_adapter_keep_no_input() -> None:
    layer = model("llama-3.1-8b").block("layer")

    def kept(trained: TrainedWeights, *targets: AdapterTarget) -> set[str]:
        framework = replace(HAND_FUSED, trained=trained, adapter_targets=targets)
        return set(kept_bytes(layer, DType.BF16, framework, MatmulRecipe.WORKING).by_mode[Recompute.NONE])

    whole = kept(TrainedWeights.ALL)
    assert kept(TrainedWeights.ADAPTERS) == kept(TrainedWeights.ALL, AdapterTarget.Q) == whole
    assert whole - kept(TrainedWeights.ADAPTERS, AdapterTarget.Q) == {"mlp_normed", "act_out"}
    assert whole - kept(TrainedWeights.ADAPTERS, AdapterTarget.DOWN) == {"mlp_normed", "attn_normed"}


def test_masks_of_dropout_take_memory() -> None:
    # Two masks a layer of one byte an element, 4096 x 4096, 16 layers a stage, two micro-batches on the first.
    assert peak_bytes({"dropout": "masked"}) - peak_bytes({}) > 0.9 * 2 * 16 * 2 * 4096**2


def test_gradients_after_the_backward_pass_are_not_hidden() -> None:
    hidden, after, whole = ({"reduction": way} for way in ("overlapped", "after-backward", "in-fp32-after-backward"))
    assert step_s(hidden) < step_s(after) < step_s(whole)


def test_what_lies_beside_the_state_is_counted_once() -> None:
    assert peak_bytes({"context_bytes": GIB}) - peak_bytes({"context_bytes": 0}) == pytest.approx(GIB)
    deferred = flat(planned({"head_gradients": "deferred"})).stages[-1].memory.total_bytes
    at_once = flat(planned({})).stages[-1].memory.total_bytes
    assert deferred - at_once == pytest.approx(GENERIC_LAW.allocator * 15 * 4096 * (4096 + 128256 / 2) * 2)


def test_deepspeeds_buffers_lie_beside_the_state() -> None:
    def buffers(gradient_dtype: str) -> float:
        given = {"gradient_dtype": gradient_dtype}
        return peak_bytes({"state_buffers": "deepspeed-zero"}, **given) - peak_bytes({}, **given)

    of_stage, of_head = 8.03e9 / 4, 128256 / 2 * 4096
    # Beside fp32 gradients 16-bit ones, a bucket of 500 million and an fp32 copy of the head's gradient, with the allocator's
    # share; the stage with the head has a twentieth more than the mean.
    least = of_stage * 2 + 500e6 * 4 + of_head * 4
    assert least < buffers("fp32") < GENERIC_LAW.allocator * 1.08 * least
    # Of 16-bit gradients two buckets, the fp32 gradients of a shard, and an fp64 copy of the head's, which lies in it.
    least = 2 * 500e6 * 2 + of_stage / 2 * 4 + of_head * 8
    assert least < buffers("bf16") < GENERIC_LAW.allocator * 1.08 * least


@pytest.mark.parametrize("launcher", ["accelerate", "hf-trainer", "trl", "axolotl", "llama-factory"])
def test_launchers_over_accelerate_run_zero_1_alone_by_deepspeed(launcher: str) -> None:
    implementation = TRAINERS[Launcher(launcher)].implementation
    assert implementation.state_buffers.stages == (1,)
    assert StateBuffers.DEEPSPEED_ZERO.stages == (1, 2) and StateBuffers.NONE.stages == ()


def test_a_plan_is_predicted_as_it_was_found() -> None:
    request = request_of({"profile": "megatron-deepspeed-2022", "reduction": "after-backward"})
    found = solve(request, stop=never_stop, progress=ignore_progress)
    assert predict(request, found).predicted == found.predicted
