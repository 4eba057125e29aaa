"""The bands that plans print: of whole steps, wider where less is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.calibration.kernel_file import borrowed_name
from meshwright.costmodels.calibration.networks import network_calibration
from meshwright.costmodels.cluster.cluster import UNTOLD_RATES, Cluster, NodeGroup, SustainedRates
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.adapter import Adapter, AdapterTarget, BaseFormat
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.training.report.bands import (
    ASSUMED_FRAMEWORK,
    KNOWN_FRAMEWORK,
    StepErrorModel,
    has_untold_rates,
    plan_bands,
    step_time_bands,
    step_traits,
    unlike_measured,
    unmeasured_wait_s,
)

PP, DP = RankOrder.PP_OUTERMOST, RankOrder.DP_OUTERMOST
PARTS = TimeBreakdown(
    compute_s=6.0, recompute_s=0.0, tp_comm_s=1.0, cp_comm_s=0.0, pp_comm_s=0.0, dp_comm_s=1.0, bubble_s=2.0, optimizer_s=0.0
)


def request(calibration: str | None = None, name: str = "llama-3.1-8b") -> TrainingRequest:
    """Training on one node, whose devices have their own calibration or the one given."""
    node = node_type("dgx-h100")
    node = node if calibration is None else replace(node, device=replace(node.device, calibration=calibration))
    workload = TrainingWorkload("training", global_batch=64, seq_len=4096)
    return TrainingRequest(model(name), Cluster((NodeGroup("nodes", node, 1),)), workload)


def band(asked: TrainingRequest, layer_s: float = 0.05, error: StepErrorModel = KNOWN_FRAMEWORK) -> tuple[float, float, str]:
    """Return ends and basis of the band of a step of 10 s."""
    traits = step_traits(asked.model, PARTS, [layer_s * len(asked.model.layers)])
    found = step_time_bands(asked, traits, step_time_s=10.0, tokens_per_s=5.0, mfu=0.4, model=error)["step_time_s"]
    return found.low, found.high, found.basis


def test_a_step_is_inside_its_bands() -> None:
    asked = request()
    traits = step_traits(asked.model, PARTS, [1.0])
    assert traits.communication == 0.2 and traits.experts == 0.0
    bands = step_time_bands(asked, traits, step_time_s=10.0, tokens_per_s=5.0, mfu=0.4)
    for name, value in (("step_time_s", 10.0), ("tokens_per_s", 5.0), ("mfu", 0.4)):
        assert bands[name].low < value < bands[name].high
    assert bands["tokens_per_s"].high / 5.0 == pytest.approx(10.0 / bands["step_time_s"].low, rel=1e-12)


def test_experts_and_unknown_frameworks_widen_the_band() -> None:
    low, high, _ = band(request())
    for wider in (band(request(name="qwen3-30b-a3b")), band(request(), error=ASSUMED_FRAMEWORK)):
        assert wider[0] < low and wider[1] > high


def test_only_networks_between_nodes_that_nobody_measured_widen_the_band() -> None:
    asked, axes = request(), Axes(dp=4, tp=4)
    two = replace(asked.cluster, groups=(replace(asked.cluster.groups[0], nodes=2),))
    assert unmeasured_wait_s(asked.cluster, axes, PARTS, choices=MeshChoices(PP)) == 0.0, "one node has no network"
    # tp stays inside a node, dp does not; each has a second.
    spread = network_calibration("infiniband").log_sigma
    assert unmeasured_wait_s(two, axes, PARTS, choices=MeshChoices(PP)) == spread
    # Of a stage's ranks those with the same tensors lie in one node, of a replica's all.
    piped, sends = Axes(dp=2, tp=4, pp=2), replace(PARTS, pp_comm_s=4.0)
    assert unmeasured_wait_s(two, piped, sends, choices=MeshChoices(PP)) == 4.0 * spread
    assert unmeasured_wait_s(two, piped, sends, choices=MeshChoices(DP)) == PARTS.dp_comm_s * spread
    wide, narrow = (step_traits(asked.model, PARTS, [1.0], unmeasured_wait_s=wait_s) for wait_s in (2.0, 0.0))
    error = replace(KNOWN_FRAMEWORK, network=0.5)
    assert error.scale(wide) == error.scale(narrow) + 0.5 * 0.2
    # A scale that has no share of it: the range of the prior comes on top.
    unfitted = replace(KNOWN_FRAMEWORK, network=0.0)
    (low, high), (plain_low, plain_high) = unfitted.factors(wide), unfitted.factors(narrow)
    assert low < plain_low < 1.0 < plain_high < high
    assert math.log(high) == pytest.approx(math.hypot(math.log(plain_high), 1.645 * 0.2), rel=1e-3)


def test_every_trait_of_an_error_model_widens_the_band() -> None:
    plain = StepErrorModel(base=0.1, small=0.0, communication=0.0, experts=0.0, below=2.0, above=3.0, basis="made up")
    for name in ("small", "communication", "experts"):
        asked = request(name="qwen3-30b-a3b")
        (low, high, _), wider = (band(asked, layer_s=0.002, error=model) for model in (plain, replace(plain, **{name: 0.2})))
        assert wider[0] < low and wider[1] > high, name


def test_a_chip_of_which_no_training_run_told_its_rates_widens_the_band() -> None:
    told = request().cluster
    group = told.groups[0]
    device = replace(group.node.device, sustained=SustainedRates())
    untold = replace(told, groups=(replace(group, node=replace(group.node, device=device)),))
    assert has_untold_rates(untold) and not has_untold_rates(told)
    wide, narrow = (step_traits(request().model, PARTS, [1.0], untold_rates=given) for given in (True, False))
    assert KNOWN_FRAMEWORK.scale(wide) == KNOWN_FRAMEWORK.scale(narrow) + KNOWN_FRAMEWORK.chip > KNOWN_FRAMEWORK.scale(narrow)


def test_a_borrowed_calibration_widens_the_band_and_says_so() -> None:
    own, borrowed = band(request()), band(request(borrowed_name("mine", "a100_sxm")))
    assert borrowed[0] < own[0] and borrowed[1] > own[1]
    assert "not measured on" in borrowed[2] and "not measured on" not in own[2]


def test_what_no_run_was_measured_with_is_said() -> None:
    asked, axes = request(), Axes(dp=1, tp=8)
    assert unlike_measured(asked, axes, PARTS) == ()
    (group,) = asked.cluster.groups
    strange = replace(group.node.device, name="strange", sustained=UNTOLD_RATES)
    other = replace(group, name="other", node=replace(group.node, device=strange))
    wide = replace(
        asked,
        cluster=replace(asked.cluster, groups=(replace(group, nodes=2_000), other)),
        workload=replace(asked.workload, seq_len=2**20),
    )
    said = unlike_measured(wide, replace(axes, cp=16, ep=128), replace(PARTS, offload_s=0.1))
    assert said == (
        "16,008 devices (at most 12,288)",
        "1,048,576 tokens in a sequence (at most 131,072)",
        "16 cp (at most 8)",
        "128 ep (at most 64)",
        "the rates of strange",
        "devices of several kinds",
        "state or activations on hosts",
    )
    packed = replace(asked, workload=replace(asked.workload, adapter=Adapter(rank=16, base_format=BaseFormat.NF4)))
    assert unlike_measured(packed, axes, PARTS) == ("frozen weights in nf4",)
    attention = Adapter(rank=16, targets=(AdapterTarget.Q, AdapterTarget.V))
    routed = replace(request(name="qwen3-30b-a3b"), workload=replace(asked.workload, adapter=attention))
    assert unlike_measured(routed, axes, PARTS) == ("adapters in a model with experts",)


def test_a_plan_says_in_its_band_what_it_was_not_measured_with() -> None:
    asked = request()
    figures = {"step_time_s": 10.0, "tokens_per_s": 5.0, "mfu": 0.4}
    told = [
        plan_bands(asked, Axes(dp=1, tp=8, cp=cp), PARTS, [1.0], choices=MeshChoices(PP), **figures)["step_time_s"].basis
        for cp in (1, 16)
    ]
    assert told[1] == f"{told[0]}; no run was measured with 16 cp (at most 8)"
