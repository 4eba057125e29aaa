"""Adapters of low rank beside frozen weights: what they take, what is left out, what is refused, and plans of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import ExportError, PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.adapter import Adapter, AdapterKind, BaseFormat
from meshwright.costmodels.model.implementation import AdapterTarget, TrainedWeights
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.switching.switch import switch_bytes
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.report.changes import training_changes
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.planned import planned

LLAMA = model("llama-3.1-8b")
LORA_16 = 41_943_040
"""Trainable parameters of Llama-3-8B with rank 16 beside all seven projections, as PEFT prints them."""
PACKED = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)


ATTENTION_ALONE = (AdapterTarget.Q, AdapterTarget.K, AdapterTarget.V, AdapterTarget.O)


def asked(adapter: Adapter | None, *, layers: int = 32, launcher: Launcher = Launcher.TRL, **search: Any) -> TrainingRequest:
    """The model on a node of eight H100."""
    chain = tuple(replace(run, repeat=layers) if run.repeat > 1 else run for run in LLAMA.chain)
    workload = TrainingWorkload("training", global_batch=32, seq_len=2048, adapter=adapter)
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 1),))
    wanted = Search(space=Space.LAUNCHABLE, launcher=launcher, **search)
    return TrainingRequest(replace(LLAMA, chain=chain), cluster, workload, search=wanted)


def test_lora_holds_the_model_and_sixteen_bytes_an_adapter_parameter() -> None:
    memory = flat(planned(asked(Adapter(16), zero_stages=(0,)))).stages[0].memory
    assert memory.weights_bytes == pytest.approx(2 * LLAMA.parameters() + 4 * LORA_16)
    assert memory.gradients_bytes == pytest.approx(4 * LORA_16)
    assert memory.optimizer_bytes == pytest.approx(8 * LORA_16)


def test_zero_3_divides_weights_and_adapters() -> None:
    memory = flat(planned(asked(Adapter(16), zero_stages=(3,), shard_ranks=(8,)))).stages[0].memory
    assert memory.weights_bytes == pytest.approx((2 * LLAMA.parameters() + 4 * LORA_16) / 8)
    assert memory.gradients_bytes + memory.optimizer_bytes == pytest.approx(12 * LORA_16 / 8)


def test_qlora_packs_the_products_of_layers_alone() -> None:
    memory = flat(planned(asked(Adapter(16, base_format=BaseFormat.NF4), zero_stages=(0,)))).stages[0].memory
    whole = 2 * (LLAMA.parameters() - PACKED)
    assert memory.weights_bytes == pytest.approx(whole + PACKED * 4.127 / 8 + 4 * LORA_16, rel=1e-4)
    # The widest weight is unpacked while a product reads it.
    assert memory.transient_bytes >= 2 * 4096 * 14336


def test_zero_3_divides_packed_weights_as_all_others() -> None:
    """bitsandbytes from 0.43, bnb_4bit_quant_storage in the working format."""
    packed = asked(Adapter(16, base_format=BaseFormat.NF4), zero_stages=(3,), shard_ranks=(8,))
    plan = planned(packed)
    memory = flat(plan).stages[0].memory
    whole = 2 * (LLAMA.parameters() - PACKED)
    assert memory.weights_bytes == pytest.approx((whole + PACKED * 4.127 / 8 + 4 * LORA_16) / 8, rel=1e-4)
    assert not check(plan, packed)
    # What is gathered is packed, too, and one weight unpacked beside it.
    plain = flat(planned(asked(Adapter(16), zero_stages=(3,), shard_ranks=(8,)))).stages[0].memory
    assert memory.weights_bytes < plain.weights_bytes
    assert memory.transient_bytes <= plain.transient_bytes


@pytest.mark.parametrize("shard_ranks", [2, 4, 8])
@pytest.mark.parametrize("zero_stage", [0, 3])
def test_packed_weights_never_take_more_than_plain_ones(zero_stage: int, shard_ranks: int) -> None:
    search = {"zero_stages": (zero_stage,), "recompute": (Recompute.FULL,), "microbatch": (1,)}
    search |= {"shard_ranks": (shard_ranks,)} if zero_stage else {}
    peaks = []
    for base in (BaseFormat.NF4, BaseFormat.WORKING):
        plan = planned(asked(Adapter(16, base_format=base), layers=4, **search))
        assert plan.predicted is not None
        peaks.append(plan.predicted.peak_memory_bytes)
    assert peaks[0] < peaks[1]


def test_eight_bits_are_no_shards() -> None:
    with pytest.raises(WorkloadError, match="ZeRO"):
        planned(asked(Adapter(16, base_format=BaseFormat.INT8), zero_stages=(3,)))


def test_eight_bits_take_a_byte_a_weight_and_a_scale_an_output() -> None:
    int8 = asked(Adapter(16, base_format=BaseFormat.INT8), recompute=(Recompute.NONE,), microbatch=(1,))
    memory = flat(planned(int8)).stages[0].memory
    outputs = 32 * (4096 + 1024 + 1024 + 4096 + 2 * 14336 + 4096)
    assert memory.weights_bytes == pytest.approx(2 * (LLAMA.parameters() - PACKED) + PACKED + 4 * outputs + 4 * LORA_16)
    # Its products keep their inputs, with an adapter or without.
    few = replace(int8, workload=replace(int8.workload, adapter=Adapter(16, (AdapterTarget.Q,), BaseFormat.INT8)))
    latents = 32 * 2048 * 2 * 6 * 16
    less = memory.activations_bytes - flat(planned(few)).stages[0].memory.activations_bytes
    assert less == pytest.approx(latents)


def test_dora_has_a_magnitude_an_output_and_keeps_what_it_multiplies() -> None:
    given: dict[str, Any] = {"recompute": (Recompute.NONE,), "zero_stages": (0,), "microbatch": (1,)}
    lora, dora = (planned(asked(Adapter(16, kind=kind), **given)) for kind in AdapterKind)
    one, other = (flat(plan).stages[0].memory for plan in (lora, dora))
    outputs = 32 * (4096 + 1024 + 1024 + 4096 + 2 * 14336 + 4096)
    assert other.weights_bytes - one.weights_bytes == pytest.approx(4 * outputs)
    assert other.optimizer_bytes - one.optimizer_bytes == pytest.approx(8 * outputs)
    assert other.activations_bytes - one.activations_bytes == pytest.approx(2048 * 2 * 2 * outputs)
    # A weight unpacked, its adapter as a matrix, and their sum.
    down = LLAMA.block("layer").operator("down_proj")
    assert Adapter(16, base_format=BaseFormat.INT8, kind=AdapterKind.DORA).made_at_once(down, LLAMA.dims) == 3 * 4096 * 14336
    assert lora.predicted is not None and dora.predicted is not None
    assert 1.1 < (dora.predicted.step_time_s or 0.0) / (lora.predicted.step_time_s or 1.0) < 2.0


def test_targets_choose_what_has_an_adapter() -> None:
    few = Adapter(8, (AdapterTarget.Q, AdapterTarget.V))
    memory = flat(planned(asked(few, zero_stages=(0,)))).stages[0].memory
    assert memory.gradients_bytes == pytest.approx(4 * 32 * 8 * ((4096 + 4096) + (4096 + 1024)))


def test_only_inputs_that_a_gradient_reads_are_kept() -> None:
    requests = [
        asked(Adapter(8, targets), recompute=(Recompute.NONE,), zero_stages=(0,), microbatch=(1,))
        for targets in (ATTENTION_ALONE, tuple(AdapterTarget))
    ]
    few, all_ = (flat(planned(request)).stages[0].memory.activations_bytes for request in requests)
    # Of each token what the feed-forward network's products read, the normed stream and the activation, and three latents.
    assert all_ - few == pytest.approx(32 * 2048 * 2 * (4096 + 14336 + 3 * 8))
    # Norms step by step keep fp32 rows, but of frozen ones no normed rows; the loss keeps its softmax, a frozen head nothing.
    attended, gated = 4096 + 1024 + 1024 + 4096, 3 * 14336
    layer = 2 * 4 * 4096 + 2 * (4096 + attended + gated + 4 * 8)
    assert few == pytest.approx(2048 * (32 * layer + 4 * (4096 + 128256)))


def test_products_lose_their_weight_gradients_and_gain_thin_products() -> None:
    up, sizes = LLAMA.block("layer").operator("gate_up_proj"), {**LLAMA.dims, "batch": 1, "seq": 2048}
    h100 = node_type("dgx-h100").device

    def times(trained: TrainedWeights, adapter: Adapter | None) -> tuple[float, float]:
        found = operator_time(up, sizes, device=h100, dtype=DType.BF16, trained=trained, adapter=adapter)
        return found.forward_s, found.backward_s

    whole = times(TrainedWeights.ALL, None)
    lora, wide = (times(TrainedWeights.ADAPTERS, Adapter(rank)) for rank in (16, 512))
    none = times(TrainedWeights.ADAPTERS, Adapter(16, (AdapterTarget.Q,)))
    packed = times(TrainedWeights.ADAPTERS, Adapter(16, (AdapterTarget.Q,), BaseFormat.NF4))
    assert none[0] == whole[0] < lora[0] < wide[0]
    assert none[1] < lora[1] < wide[1]
    assert lora[1] < whole[1]
    unpacked_s = 2 * 4096 * 14336 * (2 + 4.127 / 8) / h100.memory_bytes_per_s
    for plain_s, packed_s in zip(none, packed, strict=True):
        assert unpacked_s < packed_s - plain_s < 2 * unpacked_s


@pytest.mark.parametrize("base", BaseFormat)
def test_plans_are_the_best_of_all_choices_and_agree_with_their_own_prediction(base: BaseFormat) -> None:
    request = asked(Adapter(32, base_format=base), launcher=Launcher.AXOLOTL)
    plan = planned(request)
    assert plan.certificate.status is Status.OPTIMAL
    assert predict_training(request, plan).predicted == plan.predicted
    steps_s = []
    for zero, mode, size in itertools.product((0, 3), (Recompute.NONE, Recompute.FULL), (1, 2, 4)):
        if zero == 0 or base is not BaseFormat.INT8:
            one = replace(request.search, zero_stages=(zero,), recompute=(mode,), microbatch=(size,))
            alone = planned(replace(request, search=one)).predicted
            steps_s += [alone.step_time_s] if alone is not None and alone.step_time_s is not None else []
    assert len(steps_s) > 3
    assert plan.predicted is not None
    assert plan.predicted.step_time_s == pytest.approx(min(steps_s))


def test_routed_experts_lie_frozen_beside_adapters_of_attention() -> None:
    mixtral = model("mixtral-8x7b")
    plan = planned(replace(asked(Adapter(16, ATTENTION_ALONE), zero_stages=(3,)), model=mixtral))
    memory = flat(plan).stages[0].memory
    trained = 32 * 16 * ((4096 + 4096) * 2 + (4096 + 1024) * 2)
    ranks = flat(plan).stages[0].shard_ranks or 8
    assert memory.gradients_bytes == pytest.approx(4 * trained / ranks)
    assert memory.weights_bytes == pytest.approx((2 * mixtral.parameters() + 4 * trained) / ranks)


def test_a_step_takes_less_time_than_training_all_weights() -> None:
    whole, lora = (planned(asked(adapter)).predicted for adapter in (None, Adapter(16)))
    assert whole is not None
    assert lora is not None
    assert (lora.step_time_s or 0.0) < (whole.step_time_s or 0.0)


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ("weights_bytes", Rule.WEIGHTS),
        ("gradients_bytes", Rule.GRADIENTS),
        ("optimizer_bytes", Rule.OPTIMIZER),
        ("activations_bytes", Rule.ACTIVATIONS),
    ],
)
@pytest.mark.parametrize("factor", [0.999, 1.001])
@pytest.mark.parametrize(
    "adapter", [Adapter(64, base_format=BaseFormat.NF4), Adapter(8, (AdapterTarget.Q,), BaseFormat.INT8, AdapterKind.DORA)]
)
def test_the_checker_counts_what_a_plan_claims(field: str, rule: Rule, factor: float, adapter: Adapter) -> None:
    request = asked(adapter, recompute=(Recompute.NONE,))
    plan = planned(request)
    (stage,) = flat(plan).stages
    memory = replace(stage.memory, **{field: factor * getattr(stage.memory, field)})
    changed = with_fields(plan, stages=(replace(stage, memory=memory),))
    assert rule in {violation.rule for violation in check(changed, request)}


def test_the_checker_refuses_what_is_not_planned_beside_adapters() -> None:
    request = asked(Adapter(16))
    plan = planned(request)
    (stage,) = flat(plan).stages
    sharded = with_fields(plan, stages=(replace(stage, zero_stage=1),))
    assert Rule.SEARCH in {violation.rule for violation in check(sharded, request)}
    other = replace(request, search=replace(request.search, launcher=Launcher.HF_TRAINER))
    assert Rule.LAUNCHER in {violation.rule for violation in check(plan, other)}


@pytest.mark.parametrize(
    "search",
    [
        {"launcher": Launcher.MEGATRON_LM},
        {"launcher": Launcher.HF_TRAINER},
        {"space": Space.FREE},
        {"zero_stages": (1, 2)},
        {"offload_optimizer": (0.0, 1.0)},
    ],
)
def test_searches_that_do_not_go_with_adapters_are_refused(search: dict[str, Any]) -> None:
    request = asked(Adapter(16))
    with pytest.raises(WorkloadError):
        planned(replace(request, search=replace(request.search, **search)))


def test_workloads_that_do_not_go_with_adapters_are_refused() -> None:
    request = asked(Adapter(16))
    with pytest.raises(WorkloadError, match="optimizer"):
        replace(request, workload=replace(request.workload, optimizer=Optimizer.MUON))
    packed = replace(request.workload, adapter=Adapter(16, ATTENTION_ALONE, BaseFormat.NF4))
    for workload in (request.workload, packed):
        with pytest.raises(WorkloadError, match="routed experts"):
            replace(request, model=model("mixtral-8x7b"), workload=workload)
    with pytest.raises(WorkloadError, match="each once"):
        Adapter(16, (AdapterTarget.Q, AdapterTarget.Q))


def test_launchers_that_train_no_adapters_export_none() -> None:
    request = asked(Adapter(16))
    with pytest.raises(ExportError, match="train all weights"):
        export(planned(request), request, "deepspeed")


def test_packed_weights_that_fit_are_not_left_out_of_suggestions() -> None:
    """70B in four bits fits a device of 80 GB, in 16 bits it does not: shorter sequences help the first alone."""
    cluster = Cluster((NodeGroup("a", part_of_node(node_type("dgx-h100"), 1), 1),))
    for base, helps in ((BaseFormat.NF4, True), (BaseFormat.WORKING, False)):
        request = replace(asked(Adapter(16, base_format=base)), model=model("llama-3.1-70b"), cluster=cluster)
        request = replace(request, workload=replace(request.workload, global_batch=1, seq_len=65_536))
        plan = planned(request)
        assert not plan.feasible
        assert plan.reason is not None
        changed = [change.set for ladder in training_changes(request, plan.reason) for change in ladder]
        assert any("seq_len" in str(each) for each in changed) is helps, changed


def test_moves_of_adapters_are_not_counted_as_moves_of_all_weights() -> None:
    request = asked(Adapter(16))
    answered = AnsweredRequest(planned(request), request)
    with pytest.raises(PlanFileError, match="moves of adapters"):
        switch_bytes(answered, answered)
