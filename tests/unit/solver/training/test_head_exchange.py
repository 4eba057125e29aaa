"""Context parallelism by exchanging heads (Ulysses) and by rings, in the search, the checker and the predictor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.planned import planned


def request(name: str = "llama-3.1-8b", seq_len: int = 16384, **search: object) -> TrainingRequest:
    """One micro-batch of long sequences on two nodes."""
    fields: dict[str, object] = {"tp": (1,), "pp": (1,), "cp": (8,), "microbatch": (1,), "zero_stages": (1,), **search}
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 2),))
    workload = TrainingWorkload("training", global_batch=16, seq_len=seq_len)
    return TrainingRequest(model(name), cluster, workload, search=Search(**fields))  # type: ignore[arg-type]


def with_ulysses(plan: Plan, degree: int) -> Plan:
    assert flat(plan).axes is not None
    axes = replace(flat(plan).axes, ulysses=degree)
    return with_fields(plan, axes=axes, stages=tuple(replace(stage, axes=axes) for stage in flat(plan).stages))


def step_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def test_on_short_shares_exchanging_heads_beats_a_ring() -> None:
    asked = request(seq_len=16384, recompute=(Recompute.FULL,))
    both = planned(asked)
    ring = planned(request(seq_len=16384, recompute=(Recompute.FULL,), ulysses=(1,)))
    assert flat(both).axes is not None and flat(both).axes.cp == 8 and flat(both).axes.ulysses > 1
    assert step_s(both) < step_s(ring)
    assert predict_training(asked, both).predicted == both.predicted
    # What a rank keeps is the same: as many elements lie elsewhere.
    assert flat(both).stages[0].memory.activations_bytes == pytest.approx(flat(ring).stages[0].memory.activations_bytes)


def test_heads_bound_the_exchange() -> None:
    for tp, most in ((1, 8), (2, 4), (8, 1)):
        plan = planned(request(tp=(tp,), cp=(2,) if tp == 8 else (8 // tp,), recompute=(Recompute.FULL,)))
        assert flat(plan).axes is not None and flat(plan).axes.ulysses <= most


def test_launchers_without_it_have_rings() -> None:
    plan = planned(request(launcher=Launcher.TORCHTITAN, recompute=(Recompute.FULL,)))
    assert flat(plan).axes is not None and flat(plan).axes.ulysses == 1
    exchanged = with_ulysses(plan, 2)
    assert Rule.LAUNCHER in {violation.rule for violation in check(exchanged, request(launcher=Launcher.TORCHTITAN))}


def test_sliding_windows_go_with_exchanges_where_rings_have_none() -> None:
    asked = request("mistral-7b", cp=(2,), recompute=(Recompute.FULL,), cp_keys=(CpKeys.RING,))
    plan = planned(asked)
    assert flat(plan).axes is not None and flat(plan).axes.ulysses == flat(plan).axes.cp == 2
    assert Rule.LAUNCHER in {violation.rule for violation in check(with_ulysses(plan, 1), asked)}


@pytest.mark.parametrize(("degree", "rule"), [(3, Rule.AXES), (16, Rule.DIVISIBILITY), (0, Rule.AXES)])
def test_the_checker_and_the_predictor_refuse_uneven_exchanges(degree: int, rule: Rule) -> None:
    asked = request(recompute=(Recompute.FULL,), space=Space.FREE, launcher=Launcher.MEGATRON_LM)
    plan = with_ulysses(planned(asked), degree)
    assert rule in {violation.rule for violation in check(plan, asked)}
    with pytest.raises(PlanFileError, match="ulysses"):
        predict_training(asked, plan)


def test_restrictions_bind() -> None:
    plan = planned(request(recompute=(Recompute.FULL,), ulysses=(4,)))
    assert flat(plan).axes is not None and flat(plan).axes.ulysses == 4
    assert Rule.SEARCH in {violation.rule for violation in check(plan, request(ulysses=(2,)))}


def test_beside_rings_projections_leave_no_copy_of_what_attention_received() -> None:
    """Queries, keys and values of a joint projection lie in one storage, which attention on one rank keeps by its values. On
    two ranks it keeps what they sent each other: 4,096 + 1,024 elements of queries and keys before their rotation go."""
    alone, shared = (planned(request(cp=(cp,), seq_len=2048, recompute=(Recompute.NONE,))) for cp in (1, 2))
    saved_bytes = flat(alone).stages[0].memory.activations_bytes / 2 - flat(shared).stages[0].memory.activations_bytes
    layers, tokens = 32, 2048 / 2
    assert saved_bytes == pytest.approx(layers * tokens * (4096 + 1024) * 2)
