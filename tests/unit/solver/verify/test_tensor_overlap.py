"""Rules of products over tp that are cut into chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Launcher, Space, System, TpOverlap
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from meshwright.solver.verify.launchers import Layers
from meshwright.solver.verify.training.sharding import overlap_violations
from meshwright.solver.verify.training.stage_bytes import form_bytes, layers_of
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.verify.changes import changed
from tests.unit.solver.verify.plans import model, training_plan, training_request

STREAM = 16 * 8 * 2.0
"""Bytes of the residual stream of a micro-batch: 16 tokens, hidden 8, bf16. Megatron-LM holds 12 such buffers."""


def chunked_request(search: Search | None = None, *, link: str = "nvlink9") -> PlanRequest:
    request = training_request(search=search or Search(tp_overlap=(TpOverlap.CHUNKED,)))
    group = request.cluster.groups[0]
    node = replace(group.node, intra=replace(group.node.intra, name=link))
    return replace(request, cluster=replace(request.cluster, groups=(replace(group, node=node),)))


def chunked_plan() -> Plan:
    plan = with_fields(training_plan(), tp_overlap=TpOverlap.CHUNKED)
    for stage in range(2):
        plan = changed(plan, f"stages.{stage}.memory.overhead_bytes", 12 * STREAM)
    return changed(plan, "predicted.peak_memory_bytes", max(stage.memory.total_bytes for stage in flat(plan).stages))


def broken(plan: Plan, request: PlanRequest) -> set[Rule]:
    return {violation.rule for violation in overlap_violations(pipeline_plan(plan), request)}


def test_a_plan_that_keeps_the_rules_is_accepted() -> None:
    assert check(chunked_plan(), chunked_request()) == ()


def test_only_what_the_request_allows() -> None:
    assert broken(chunked_plan(), chunked_request(Search(tp_overlap=(TpOverlap.EXPOSED,)))) == {Rule.SEARCH}
    assert broken(training_plan(), chunked_request()) == {Rule.SEARCH}
    for both in (Search(), Search(tp_overlap=tuple(TpOverlap))):
        assert broken(training_plan(), chunked_request(both)) == broken(chunked_plan(), chunked_request(both)) == set()


def test_one_rank_has_nothing_to_cut() -> None:
    alone = with_fields(training_plan(), axes=Axes(dp=4, pp=2), sequence_parallel=False)
    assert broken(alone, chunked_request()) == set()
    assert broken(with_fields(alone, tp_overlap=TpOverlap.CHUNKED), chunked_request()) >= {Rule.SEARCH, Rule.SEQUENCE}


def test_chunks_are_of_what_is_gathered_and_scattered() -> None:
    assert broken(with_fields(chunked_plan(), sequence_parallel=False), chunked_request()) == {Rule.SEQUENCE}


@pytest.mark.parametrize("launcher", [Launcher.DEEPSPEED, Launcher.VLLM])
def test_launchers_without_chunks(launcher: Launcher) -> None:
    asked = chunked_request(Search(launcher=launcher, tp_overlap=(TpOverlap.CHUNKED,)))
    assert broken(chunked_plan(), asked) == {Rule.LAUNCHER}


def test_no_published_planner_searches_them() -> None:
    asked = chunked_request(Search(system=System.MIST, tp_overlap=(TpOverlap.CHUNKED,)))
    assert broken(chunked_plan(), asked) == {Rule.SEARCH}


def test_megatron_cuts_over_nvlink_without_its_fsdp_in_four_parts_a_rank() -> None:
    fsdp = changed(changed(chunked_plan(), "stages.0.zero_stage", 2), "stages.1.zero_stage", 2)
    titan = chunked_request(Search(launcher=Launcher.TORCHTITAN, tp_overlap=(TpOverlap.CHUNKED,)))
    assert broken(fsdp, chunked_request()) == {Rule.LAUNCHER}
    assert broken(fsdp, titan) == set()
    uneven = chunked_request()
    uneven = replace(uneven, workload=replace(uneven.workload, seq_len=20))
    plan = chunked_plan()
    assert {v.rule for v in overlap_violations(pipeline_plan(plan), uneven) if "rows" in v.message} == {Rule.LAUNCHER}
    assert broken(plan, chunked_request(link="pcie5")) == {Rule.LAUNCHER}
    free = Search(space=Space.FREE, tp_overlap=(TpOverlap.CHUNKED,))
    assert broken(plan, chunked_request(free, link="pcie5")) == set()


@pytest.mark.parametrize(("launcher", "held"), [(Launcher.MEGATRON_LM, 12 * STREAM), (Launcher.TORCHTITAN, 2 * STREAM / 2)])
def test_buffers_are_part_of_the_overhead(launcher: Launcher, held: float) -> None:
    asked = chunked_request(Search(launcher=launcher, tp_overlap=(TpOverlap.CHUNKED,)))
    assert broken(changed(chunked_plan(), "stages.1.memory.overhead_bytes", held), asked) == set()
    assert broken(changed(chunked_plan(), "stages.1.memory.overhead_bytes", 0.99 * held), asked) == {Rule.OVERHEAD}


def test_torchtitan_compiles_what_it_cuts() -> None:
    asked = chunked_request(Search(launcher=Launcher.TORCHTITAN))
    made_of = [layers_of(asked, overlap) for overlap in TpOverlap]
    assert made_of == [Layers.MODULES, Layers.COMPILED]
    assert {layers_of(chunked_request(), overlap) for overlap in TpOverlap} == {Layers.HAND_WRITTEN}
    layer, head = (model().block(name) for name in ("layer", "head"))
    kept = {name for operator in layer.operators for name in operator.saved}
    by_modules, compiled = (form_bytes(layer, asked, kept, set(), cp=1, layers=layers) for layers in made_of)
    # The norm of x, and the activation of u, are made again; the sum s reads what a product wrote and is not kept.
    assert {name for name in kept if not compiled.get(name)} == {"n", "g"}
    assert compiled["x"] == 2.0 < by_modules["x"]
    assert form_bytes(head, asked, {"logits"}, set(), cp=1, layers=Layers.COMPILED)["logits"] == 2.0
    assert form_bytes(head, asked, {"logits"}, set(), cp=1, layers=Layers.MODULES)["logits"] == 4.0
