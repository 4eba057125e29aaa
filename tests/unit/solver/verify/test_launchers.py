"""Search and checker conclude the same of random plans from the facts of launchers that they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving.engines.layouts import runs, served_shape
from meshwright.solver.training.space.adapters import refuse_models
from meshwright.solver.training.space.candidates import families
from meshwright.solver.verify import Rule, SpaceRules
from meshwright.solver.verify.check import check
from tests.unit.app.exporters.plans import serving, training

DEGREES = st.sampled_from((1, 2, 4))


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("launcher", list(TRAINERS))
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(("llama-3.1-8b", "phi-3-mini")),
    dp=DEGREES,
    tp=st.sampled_from((1, 2, 4, 16)),
    pp=st.sampled_from((1, 2)),
    cp=st.sampled_from((1, 2)),
    zero_stage=st.integers(0, 3),
    is_sequence_parallel=st.booleans(),
    recompute=st.sampled_from(Recompute),
)
def test_a_trainer_is_given_what_the_checker_lets_it_start(
    launcher: Launcher,
    name: str,
    dp: int,
    tp: int,
    pp: int,
    cp: int,
    zero_stage: int,
    is_sequence_parallel: bool,
    recompute: Recompute,
) -> None:
    assume(tp > 1 or not is_sequence_parallel)
    assume(dp * cp > 1 or zero_stage == 0)
    plan, request = training(
        name,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero_stage=zero_stage,
        sequence_parallel=is_sequence_parallel,
        recompute=(recompute,),
        devices_per_node=16,
    )
    assert isinstance(request, TrainingRequest)
    search = Search(launcher=launcher, dp=(dp,), tp=(tp,), pp=(pp,), cp=(cp,), ulysses=(1,), zero_stages=(zero_stage,))
    search = replace(search, cp_keys=(CpKeys.RING,))
    # A cluster of just so many devices: the search uses all.
    group = request.cluster.groups[0]
    node = replace(group.node, devices_per_node=min(plan.devices, 16))
    cluster = replace(request.cluster, groups=(replace(group, node=node, nodes=plan.devices // node.devices_per_node),))
    assert _is_searched(replace(request, cluster=cluster, search=search), is_sequence_parallel, recompute) == (
        not _refused(plan, replace(request, cluster=cluster, search=search))
    )


def _is_searched(request: TrainingRequest, is_sequence_parallel: bool, recompute: Recompute) -> bool:
    """Return True if the search has a candidate of these degrees, ZeRO stage, residual layout and recompute mode."""
    try:
        refuse_models(request)
    except WorkloadError:
        return False
    return any(
        (family.boundary.dim is not None) == is_sequence_parallel and (recompute,) in family.recompute
        for family in families(request)
    )


@pytest.mark.parametrize("engine", list(ServingEngine))
@settings(max_examples=60, deadline=None)
@given(tp=st.sampled_from((1, 2, 4, 8)), attention_dp=DEGREES, ep=st.sampled_from((1, 2, 4, 8)))
def test_an_engine_is_given_what_the_checker_lets_it_run(engine: ServingEngine, tp: int, attention_dp: int, ep: int) -> None:
    """Experts over ranks: only vLLM has them on all or none."""
    grid = RankGrid(tp=tp, attention_dp=attention_dp, ep=ep)
    plan, request = serving("qwen3-30b-a3b", tp=tp, attention_dp=attention_dp, ep=ep, engine=engine)
    assume(grid.ranks <= 8 and grid.ranks % ep == 0 and divides(request.model.dims, grid))
    # TensorRT-LLM's rule of attention groups is the search's alone.
    assume(engine is not ServingEngine.TENSORRT_LLM or attention_dp == 1)
    assert runs(engine, grid, served_shape(request.model, WeightFormat.BF16)) == (not _refused(plan, request))


def _refused(plan: Plan, request: PlanRequest) -> list[str]:
    broken = check(plan, request, space_rules=SpaceRules.OF_ALL_PLANS)
    return [str(violation) for violation in broken if violation.rule is Rule.LAUNCHER]
