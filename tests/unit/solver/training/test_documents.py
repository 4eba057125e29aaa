"""Sequences that are packed of documents: what plans make of them, what is left out, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import yaml

from meshwright.app.launching.exporters import export
from meshwright.app.models.catalog import model
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.documents import DocumentLengths, Fill
from meshwright.solver.answer.pipeline_plan import pipeline_plan, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import BatchShares, Launcher, Recompute, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.space.candidates import families
from meshwright.solver.training.space.meshes import meshes
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from meshwright.solver.verify.documents import least_slowest
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.planned import planned

LLAMA = model("llama-3.1-8b")
SHORT = DocumentLengths((200, 1000, 6000), (700, 250, 50))
WHOLE = DocumentLengths((16384 * 100_000,), (1,))
"""Documents so long that hardly any sequence holds the end of one."""


def asked(lengths: DocumentLengths | None, *, seq_len: int = 16384, **search: Any) -> TrainingRequest:
    """The model on a node of eight H100."""
    workload = TrainingWorkload("training", global_batch=32, seq_len=seq_len, lengths=lengths)
    wanted = Search(**{"space": Space.LAUNCHABLE, "launcher": Launcher.TRL, **search})
    return TrainingRequest(LLAMA, Cluster((NodeGroup("a", node_type("dgx-h100"), 1),)), workload, search=wanted)


def step_s(plan: Plan) -> float:
    """The step time of a feasible plan."""
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def test_masks_of_documents_make_a_step_shorter_and_those_of_whole_sequences_do_not() -> None:
    plain, short, whole = (planned(asked(lengths)) for lengths in (None, SHORT, WHOLE))
    assert step_s(short) < step_s(whole)
    assert step_s(whole) == pytest.approx(step_s(plain), rel=1e-3)
    assert flat(short).stages[0].memory == flat(plain).stages[0].memory
    assert short.certificate.status is Status.OPTIMAL
    assert any("packed of documents of 690 tokens" in note for note in short.notes)


def test_model_flops_are_those_within_documents() -> None:
    plain, short = (planned(asked(lengths, recompute=(Recompute.FULL,))) for lengths in (None, SHORT))
    assert plain.predicted is not None and short.predicted is not None
    flops = [plan.predicted.mfu * step_s(plan) for plan in (plain, short) if plan.predicted and plan.predicted.mfu]
    # 12 layers x tokens x width a pair: attention's share of all FLOPs falls, that of products stays.
    assert 0.6 < flops[1] / flops[0] < 0.85


def test_a_prediction_of_the_plan_is_the_plan() -> None:
    request = asked(SHORT)
    plan = planned(request)
    assert predict_training(request, plan).predicted == plan.predicted


def test_requests_without_documents_are_written_as_before() -> None:
    assert "lengths" not in request_document(asked(None))["workload"]
    assert request_document(asked(SHORT))["workload"]["lengths"] == {
        "tokens": [200, 1000, 6000],
        "counts": [700, 250, 50],
        "fill": "packed",
    }


def test_ranks_of_a_sequence_exchange_heads_and_form_no_rings() -> None:
    free = asked(SHORT, space=Space.FREE)
    assert {mesh.ring for mesh in meshes(free)} == {1}
    assert {mesh.cp for mesh in meshes(free)} == {1, 2, 4, 8}
    plan = planned(replace(free, search=replace(free.search, cp=(2,), tp=(4,), recompute=(Recompute.FULL,))))
    axes = flat(plan).axes
    assert axes is not None and axes.ulysses == 2
    in_a_ring = replace(axes, ulysses=1)
    ring = with_fields(plan, axes=in_a_ring, stages=tuple(replace(each, axes=in_a_ring) for each in flat(plan).stages))
    assert Rule.SEQUENCE in {violation.rule for violation in check(ring, free)}


def test_the_checker_counts_the_pairs_by_itself() -> None:
    request = asked(SHORT)
    plan = planned(request)
    assert plan.predicted is not None and plan.predicted.mfu is not None
    for factor in (0.999, 1.001):
        wrong = replace(plan, predicted=replace(plan.predicted, mfu=factor * plan.predicted.mfu))
        assert Rule.MFU in {violation.rule for violation in check(wrong, request)}
    without = replace(request, workload=replace(request.workload, lengths=None))
    assert Rule.MFU in {violation.rule for violation in check(plan, without)}
    other = replace(request, search=replace(request.search, launcher=Launcher.DEEPSPEED))
    assert Rule.LAUNCHER in {violation.rule for violation in check(plan, other)}


@pytest.mark.parametrize(
    "search",
    [
        {"launcher": Launcher.MEGATRON_LM},
        {"space": Space.FREE, "token_slices": (2,)},
        {"space": Space.FREE, "stage_degrees": StageDegrees.ANY},
        {"space": Space.FREE, "batch_shares": BatchShares.BY_GROUP},
    ],
)
def test_searches_that_do_not_go_with_documents_are_refused(search: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError):
        planned(asked(SHORT, **search))


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("seq_len", [2048, 8192])
def test_the_checker_works_out_the_wait_by_itself(zero: int, seq_len: int) -> None:
    long = DocumentLengths((300, 1000, 40_000), (50, 10, 1))
    where: dict[str, Any] = {"space": Space.FREE, "launcher": Launcher.MEGATRON_LM, "tp": (2,), "pp": (1,), "cp": (1,)}
    request = asked(long, seq_len=seq_len, zero_stages=(zero,), microbatch=(1,), recompute=(Recompute.FULL,), **where)
    plan = planned(request)
    pipelines = pipeline_plan(plan)
    costs = TrainingCosts(request)
    found = {each.zero_stage: each for family in families(request) for each in family.candidates()}
    assert least_slowest(pipelines, request) - 1 == pytest.approx(costs.document_waits(found[zero]), rel=0.05)
    breakdown = placement_of(plan).breakdown
    assert breakdown is not None
    hidden = replace(breakdown, dp_comm_s=0.0, compute_s=breakdown.compute_s + breakdown.dp_comm_s)
    assert Rule.BREAKDOWN in {violation.rule for violation in check(with_fields(plan, breakdown=hidden), request)}


def test_padding_is_computed_and_told() -> None:
    padded = replace(SHORT, fill=Fill.PADDED)
    request = asked(padded, launcher=Launcher.AXOLOTL, seq_len=4096)
    plan, plain = planned(request), planned(replace(request, workload=replace(request.workload, lengths=None)))
    assert plan.predicted == plain.predicted
    assert flat(plan).stages == flat(plain).stages
    # 0.7 x 200 + 0.25 x 1,000 + 0.05 x 4,096, since longer documents are cut off.
    assert padded.useful_tokens(4096) == pytest.approx(594.8)
    assert any("595 tokens of documents" in note and "85.5% padding" in note for note in plan.notes)
    assert yaml.safe_load(export(plan, request, "axolotl").files["axolotl.yaml"])["sample_packing"] is False
    with pytest.raises(ExportError, match="fill"):
        export(plan, request, "trl")


def test_launchers_that_mask_no_documents_export_none() -> None:
    request = asked(SHORT)
    plan = planned(request)
    with pytest.raises(ExportError, match="mask no documents"):
        export(plan, request, "accelerate")
    assert "packing_strategy: bfd" in export(plan, request, "trl").files["sft.yaml"]


def test_ranks_wait_for_the_slowest_once_a_step_or_in_every_microbatch() -> None:
    request = asked(SHORT, seq_len=8192, microbatch=(1,), recompute=(Recompute.FULL,))
    found = {each.zero_stage: each for family in families(request) for each in family.candidates()}
    waits = {zero: TrainingCosts(request).document_waits(candidate) for zero, candidate in found.items()}
    assert 0.0 < waits[1] < waits[2] == waits[3]
    without = TrainingCosts(asked(None, seq_len=8192))
    assert {without.document_waits(candidate) for candidate in found.values()} == {0.0}
    alike = DocumentLengths((256,), (1,))
    exact = {zero: TrainingCosts(asked(alike, seq_len=8192)).document_waits(candidate) for zero, candidate in found.items()}
    # 8,192 tokens hold 32 such documents or 31 and two parts.
    assert 0.0 < exact[3] < 0.05


def test_the_best_of_all_choices_is_found_with_waits() -> None:
    request = asked(SHORT, launcher=Launcher.AXOLOTL, seq_len=8192)
    plan = planned(request)
    steps_s = []
    for zero, mode, size in itertools.product((0, 1, 2, 3), (Recompute.NONE, Recompute.FULL), (1, 2, 4)):
        one = replace(request.search, zero_stages=(zero,), recompute=(mode,), microbatch=(size,))
        alone = planned(replace(request, search=one))
        if alone.feasible:
            steps_s.append(step_s(alone))
    assert len(steps_s) > 3
    assert step_s(plan) == pytest.approx(min(steps_s))
