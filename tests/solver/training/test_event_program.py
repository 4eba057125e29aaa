"""The step time that the search minimises against the event program of 1F1B, which is the truth (DESIGN section 3)."""

from __future__ import annotations

import pytest

from app.catalog import model
from costmodels.cluster import Cluster, NodeGroup
from costmodels.hardware import node_type
from costmodels.pipeline import Durations, Schedule, build, simulate
from solver.control import ignore_progress, never_stop
from solver.request import PlanRequest, Recompute, Search, TrainingWorkload
from solver.training.costs import TrainingCosts
from solver.training.search import Solved, search, stage_tables


def solved(search_options: Search) -> tuple[TrainingCosts, Solved]:
    request = PlanRequest(
        model("llama-3.1-70b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), 8),)),
        TrainingWorkload("training", global_batch=128, seq_len=8192),
        search=search_options,
    )
    costs = TrainingCosts(request)
    best = search(request, costs, stop=never_stop, progress=ignore_progress).best
    assert best is not None
    return costs, best


@pytest.mark.parametrize("modes", [(Recompute.NONE,), (Recompute.FULL,)])
@pytest.mark.parametrize("pp", [4, 8])
def test_the_formula_is_near_the_event_program(pp: int, modes: tuple[Recompute, ...]) -> None:
    """Steady part of the step, extras left out. The formula assumes one ratio of forward to backward in all stages; the
    embedding and the head, and layers that are recomputed beside a head that is not, bend it by less than 1%."""
    costs, best = solved(Search(pp=(pp,), recompute=modes))
    candidate, spans = best.decision.candidate, best.decision.spans
    tables = stage_tables(candidate, best.decision.sharding, costs.stage_kinds(candidate), costs)
    forward = [float(t.parts.forward_s[s.first : s.last + 1].sum()) for s, t in zip(spans, tables, strict=True)]
    times = [stage.time_s for stage in best.cost.stages]
    # Sends are part of each stage's steady time, half forward and half backward.
    sends = [t.boundary_s / 2 for t in tables]
    durations = Durations(
        forward_s=[f + s for f, s in zip(forward, sends, strict=True)],
        input_s=[t - f - s for t, f, s in zip(times, forward, sends, strict=True)],
        weight_s=[0.0] * pp,
        send_s=[0.0] * (pp - 1),
    )
    makespan_s = simulate(build(Schedule.ONE_F_ONE_B, pp, candidate.n_microbatches), durations).makespan_s
    formula_s = sum(times) + (candidate.n_microbatches - 1) * max(times)
    assert makespan_s == pytest.approx(formula_s, rel=0.01)
