"""Context parallelism whose ranks gather keys and values before attention, in the search, the checker and the predictor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.app.requests.named_plans import request_of_name
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.compute import sustained_memory_s
from meshwright.costmodels.model.implementation import AttentionFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.scan_over_ranks import gathered_keys_s
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, Space, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.space.sliced_sequences import keys_can_be_gathered
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned

RING, GATHERED = CpKeys.RING, CpKeys.GATHERED
SEEDS = (55, 62, 118, 121)
"""Seeds of random requests whose best plan with gathered keys gathers some."""


def request(*keys: CpKeys, name: str = "llama-3.1-8b", **search: object) -> TrainingRequest:
    """Long sequences on 32 ranks each, which exchange no heads."""
    fields: dict[str, object] = {"tp": (1,), "pp": (1,), "cp": (32,), "ulysses": (1,), "microbatch": (1,), "zero_stages": (1,)}
    asked = Search(**(fields | {"recompute": (Recompute.FULL,)} | search), cp_keys=keys)  # type: ignore[arg-type]
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 4),))
    return TrainingRequest(model(name), cluster, TrainingWorkload("training", global_batch=4, seq_len=131072), search=asked)


def rules(plan: Plan, asked: TrainingRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, asked)}


def test_gathers_are_exposed_copied_and_made_again_backward() -> None:
    graph, cluster, n, tokens = model("llama-3.1-8b"), request().cluster, 32, 4096
    attention = next(op for block in graph.blocks for op in block.operators if op.kind is OperatorKind.ATTENTION)
    device, ranks = cluster.groups[0].node.device, group_topology(cluster, n=n, stride=1)
    sizes = {**graph.dims, "batch": 1, "seq": tokens}
    time = gathered_keys_s(attention, sizes, device=device, dtype=DType.BF16, ranks=ranks)
    # Keys and values are 8 heads of 128 elements of two bytes each.
    whole = n * tokens * 8 * 128 * 2
    gather_s, scatter_s = (
        float(collective_s(kind, whole, ranks)) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    copy_s = sustained_memory_s(device, 2 * whole)
    sums_s = sustained_memory_s(device, whole) + 2 * sustained_memory_s(device, 3 * whole * (n + 0.5) / n / 2)
    assert time.forward_s == pytest.approx(2 * (gather_s + copy_s))
    assert time.backward_s == pytest.approx(2 * (gather_s + copy_s + scatter_s + copy_s + sums_s))


def test_over_many_ranks_gathers_beat_a_ring() -> None:
    """A ring of 32 has as many small kernels and 31 merges. Gathers keep no more, but have three times a layer's whole keys and
    values at once."""
    asked = request()
    both, ring = planned(asked), planned(request(RING))
    assert (flat(both).cp_keys, flat(ring).cp_keys) == (GATHERED, RING)
    assert both.certificate.objective is not None and ring.certificate.objective is not None
    assert both.certificate.objective < 0.95 * ring.certificate.objective
    again = predict_training(asked, both)
    assert (again.predicted, again.layout) == (both.predicted, both.layout)
    memory, of_ring = flat(both).stages[0].memory, flat(ring).stages[0].memory
    assert memory.activations_bytes == of_ring.activations_bytes
    whole = 131072 * 2 * 8 * 128 * 2
    assert 3 * whole < memory.transient_bytes < of_ring.transient_bytes + 3 * whole
    breakdown = flat(both).breakdown
    assert breakdown is not None and breakdown.cp_comm_s > 0.05 * both.certificate.objective


def drawn(seed: int, *keys: CpKeys) -> TrainingRequest:
    """A random request whose ranks share sequences."""
    found = random_request(seed)
    search = replace(found.search, cp=(2, 4), pp=(1, 2), cp_keys=keys, microbatch=(1,), recompute=found.search.recompute[:1])
    return replace(found, search=replace(search, tp_overlap=(TpOverlap.EXPOSED,), offload_optimizer=(), offload_activations=()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keys", [(GATHERED,), (RING, GATHERED)])
def test_the_best_plan_is_found(seed: int, keys: tuple[CpKeys, ...]) -> None:
    asked = drawn(seed, *keys)
    plan = planned(asked)
    assert is_the_best(plan, enumerated(asked))
    assert (flat(plan).cp_keys is GATHERED) == (keys == (GATHERED,)), "small models gather nothing by choice"


def test_windows_go_with_gathers_where_rings_have_none() -> None:
    asked = request(GATHERED, name="mistral-7b")
    plan = planned(asked)
    assert flat(plan).cp_keys is GATHERED
    assert Rule.LAUNCHER in rules(with_fields(plan, cp_keys=RING), request(name="mistral-7b"))


def test_the_checker_knows_who_has_gathers_and_how_long_they_take() -> None:
    asked = request(GATHERED)
    plan = planned(asked)
    assert rules(plan, asked) == set()
    assert rules(plan, request()) == set()
    assert rules(plan, request(RING)) == {Rule.SEARCH}
    for space, rule in ((Space.LAUNCHABLE, {Rule.LAUNCHER}), (Space.FREE, set())):
        other = replace(asked.search, launcher=Launcher.TORCHTITAN, space=space)
        assert rules(plan, replace(asked, search=other)) >= rule
    stage = flat(plan).stages[0]
    # A micro-batch that takes as long as its FLOPs at the peak has no time to gather anything.
    assert plan.predicted is not None and plan.predicted.mfu is not None and plan.predicted.step_time_s is not None
    of_flops = 1.001 * plan.predicted.mfu * plan.predicted.step_time_s / flat(plan).microbatch.count
    fastest = with_fields(plan, stages=(replace(stage, time_s=of_flops),))
    assert Rule.STAGE_TIME in rules(fastest, asked)
    assert Rule.STAGE_TIME not in rules(with_fields(fastest, cp_keys=RING), request(RING))
    in_fp8 = replace(asked.workload, implementation=StatedImplementation(attention_format=AttentionFormat.FP8))
    assert Rule.SEQUENCE in rules(plan, replace(asked, workload=in_fp8))
    with pytest.raises(PlanFileError, match="can't be gathered"):
        predict_training(replace(asked, workload=in_fp8), plan)
    assert Rule.AXES in rules(with_fields(plan, axes=replace(flat(plan).axes, ulysses=32)), asked)


def test_the_checker_knows_what_gathered_keys_take() -> None:
    """Of 32 heads of 128 elements keys and values of 131,072 tokens take 2 GiB, and their gradients as much."""
    asked = request(GATHERED, name="llama-2-7b")
    plan = planned(asked)
    stage = flat(plan).stages[0]
    for gibibytes, expected in ((3.9, {Rule.TRANSIENT}), (4.1, set())):
        scarce = replace(stage, memory=replace(stage.memory, transient_bytes=gibibytes * 2**30))
        assert rules(with_fields(plan, stages=(scarce,)), asked) & {Rule.TRANSIENT} == expected


def test_gathers_are_of_causal_attention_with_keys_as_wide_as_values() -> None:
    workload = request().workload
    for name, can in (("llama-3.1-8b", True), ("deepseek-v3", False), ("bert-large", False)):
        assert keys_can_be_gathered(model(name), workload) is can
    in_fp8 = replace(workload, implementation=StatedImplementation(attention_format=AttentionFormat.FP8))
    assert not keys_can_be_gathered(model("llama-3.1-8b"), in_fp8)


def test_requests_that_name_no_way_are_written_as_before() -> None:
    for asked, said in ((request(), None), (request(GATHERED), ["gathered"])):
        document = request_document(asked)
        assert document["search"].get("cp_keys") == said
        assert resolve_request(document, files=NoFiles()) == asked


def test_a_name_says_how_keys_travel() -> None:
    asked = request(RING, GATHERED)
    name = "dp 1, tp 1, pp 1, cp 32, micro-batch 1, ZeRO-1, recompute none"
    for words, keys in ((name, RING), (f"{name}, gathered keys", GATHERED)):
        found = request_of_name(asked, words)
        assert found is not None and found.search.cp_keys == (keys,)
