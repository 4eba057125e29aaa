"""Plans in the time of a cluster whose runs were measured: every figure of time by one factor, nothing else."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import RUN_CALIBRATION_SCHEMA, UNMEASURED_TIME
from meshwright.costmodels.fitting.calibration import learned_time
from meshwright.solver.answer.cluster_time import in_cluster_time, in_model_time
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import Slo, TrainingRequest
from tests.support.requests_given import resolved, tiny_graph, training

SCALE = 1.25
SMALL = {"model": {"graph": tiny_graph()}, "workload": {"kind": "training", "global_batch": 16, "seq_len": 512}}


def with_runs(request: Any, scale: float = SCALE) -> TrainingRequest:
    """The request with a calibration from runs in which all steps took so much longer."""
    document = {
        "schema": RUN_CALIBRATION_SCHEMA,
        "key": "runs.here.megatron-lm",
        "cluster": "here",
        "time": {"scale": scale, "shared_sigma": 0.1, "own_sigma": 0.12, "runs": 3},
        "memory": [],
    }
    made: TrainingRequest = replace(request, calibrations=(Calibration("runs.here.megatron-lm@sha256:0", document),))
    return made


def times_of(value: Any, name: str = "") -> dict[str, float]:
    """Every float of a record by its path."""
    if is_dataclass(value) and not isinstance(value, type):
        return {k: v for each in fields(value) for k, v in times_of(getattr(value, each.name), f"{name}.{each.name}").items()}
    if isinstance(value, tuple):
        return {k: v for index, each in enumerate(value) for k, v in times_of(each, f"{name}.{index}").items()}
    return {name: value} if isinstance(value, float) else {}


def test_every_figure_of_a_plan_follows_its_unit() -> None:
    request = resolved(training(**SMALL))
    plain, learned = solve_here(request), solve_here(with_runs(request))
    before, after = times_of(plain.layout, "layout"), times_of(learned.layout, "layout")
    assert plain.predicted is not None and learned.predicted is not None
    before |= times_of(replace(plain.predicted, bands={}), "predicted")
    after |= times_of(replace(learned.predicted, bands={}), "predicted")
    assert before.keys() == after.keys()
    moved = 0
    for name, value in before.items():
        ending = name.rsplit(".", 1)[-1]
        if ending.endswith(("_per_s", "mfu")):
            factor = 1 / SCALE
        elif ending.endswith(("_s", "_j", "cost_per_million_tokens")):
            factor = SCALE
        else:
            factor = 1.0
        moved += value != 0.0 and factor != 1.0
        assert after[name] == pytest.approx(value * factor, rel=1e-12), name
    assert moved > 5
    assert learned.certificate.objective == pytest.approx(SCALE * plain.certificate.objective)  # type: ignore[operator]
    assert learned.certificate.gap == plain.certificate.gap
    assert len(learned.calibration) == len(plain.calibration) + 1 and "learned" in learned.notes[-1]


def test_every_figure_of_time_is_known_by_its_name() -> None:
    others = {"peak_memory_bytes", "bands", "peak_memory_p95_bytes", "chance_out_of_memory"}
    others |= {"chance_ttft_missed", "chance_tpot_missed"}
    known = {each.name for each in fields(Predicted) if each.name.endswith(("_s", "_j", "_w", "mfu", "million_tokens"))}
    assert {each.name for each in fields(Predicted)} <= known | others, "say how a new figure follows from a longer time"


@pytest.mark.slow
def test_targets_are_judged_in_the_clusters_time() -> None:
    request = resolved(training(**SMALL))
    predicted = solve_here(request).predicted
    assert predicted is not None and predicted.step_time_s is not None
    between = replace(request, slo=Slo(max_step_time_s=predicted.step_time_s * math.sqrt(SCALE), confidence=0.5))
    assert solve_here(between).feasible
    refused = solve_here(with_runs(between))
    assert refused.reason is not None and refused.reason.constraint == "slo.max_step_time_s"
    assert refused.reason.need == pytest.approx(predicted.step_time_s * SCALE)
    assert refused.reason.have == between.slo.max_step_time_s
    rate = replace(request, slo=Slo(min_tokens_per_s=predicted.tokens_per_s / math.sqrt(SCALE), confidence=0.5))
    assert solve_here(rate).feasible and not solve_here(with_runs(rate)).feasible


def test_predicting_a_plan_again_gives_its_figures() -> None:
    request = with_runs(resolved(training(**SMALL)))
    plan = solve_here(request)
    assert predict_here(request, plan).predicted == plan.predicted


def test_without_runs_nothing_changes() -> None:
    request = resolved(training(**SMALL))
    plan = solve_here(request)
    assert in_cluster_time(plan, request) is plan and in_model_time(request) is request


def test_a_run_moves_the_scale_and_narrows_the_band() -> None:
    laws = [learned_time(UNMEASURED_TIME, {str(i): [0.2] for i in range(n)}) for n in (0, 1, 3, 30)]
    assert laws[0] == UNMEASURED_TIME
    assert [law.scale for law in laws] == sorted(law.scale for law in laws)
    assert laws[-1].scale == pytest.approx(math.exp(0.2), rel=0.02)
    spreads = [law.log_sigma for law in laws]
    assert spreads == sorted(spreads, reverse=True) and spreads[-1] < 0.5 * UNMEASURED_TIME.own_sigma
    again = learned_time(UNMEASURED_TIME, {"one": [0.2] * 50})
    assert again.log_sigma == laws[1].log_sigma and again.runs == 50
    # Layouts that disagree say that the next one may be as far off.
    apart = learned_time(UNMEASURED_TIME, {str(i): [0.6 * (-1) ** i] for i in range(30)})
    assert apart.log_sigma > 0.4 and apart.scale == pytest.approx(1.0, abs=0.05)
