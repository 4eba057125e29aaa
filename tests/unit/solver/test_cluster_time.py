"""Plans in the time of a cluster whose runs were measured: every figure of time by one factor, nothing else."""

from __future__ import annotations

import json
import math
import pickle
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_type_hints

import pytest

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import RUN_CALIBRATION_SCHEMA, UNMEASURED_TIME
from meshwright.costmodels.fitting.calibration import learned_time
from meshwright.solver.answer.cluster_time import confident_factor, in_cluster_time, in_model_time
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.timed_words import TimedWords, step_seconds
from meshwright.solver.problem.request import Slo, TrainingRequest
from tests.support.requests_given import resolved, tiny_graph, training

Leaf = TypeVar("Leaf", float, str)
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


def leaves_of(value: Any, kind: type[Leaf], name: str = "") -> dict[str, Leaf]:
    """Every float, or every text, of a record by its path."""
    if is_dataclass(value) and not isinstance(value, type):
        inner = [(getattr(value, each.name), f"{name}.{each.name}") for each in fields(value)]
    elif isinstance(value, tuple):
        inner = [(each, f"{name}.{index}") for index, each in enumerate(value)]
    else:
        return {name: value} if isinstance(value, kind) else {}
    return {path: leaf for each, place in inner for path, leaf in leaves_of(each, kind, place).items()}


def test_every_figure_of_a_plan_follows_its_unit() -> None:
    request = resolved(training(**SMALL))
    plain, learned = solve_here(request), solve_here(with_runs(request))
    before, after = (leaves_of(each.layout, float, "layout") for each in (plain, learned))
    assert plain.predicted is not None and learned.predicted is not None
    before |= leaves_of(replace(plain.predicted, bands={}), float, "predicted")
    after |= leaves_of(replace(learned.predicted, bands={}), float, "predicted")
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


def records_of(hint: Any, known: dict[type, dict[str, Any]]) -> dict[type, dict[str, Any]]:
    """All records that a type holds, each with the types of its fields."""
    if isinstance(hint, type) and is_dataclass(hint) and hint not in known:
        known[hint] = get_type_hints(hint, include_extras=True)
        for each in fields(hint):
            records_of(known[hint][each.name], known)
    for option in get_args(hint):
        records_of(option, known)
    return known


RECORDS = records_of(Plan, {})
TIMED_NAMES = ("_s", "_j", "mfu", "cost_per_million_tokens", "_per_device", "_per_user")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_figure_of_time_declares_its_unit(record: type) -> None:
    said = {name for name, hint in RECORDS[record].items() if "OverTime" in str(hint)}
    named = {name for name, hint in RECORDS[record].items() if name.endswith(TIMED_NAMES) and "float" in str(hint)}
    assert named == said


TIMES = re.compile(r"([\d.,]*\d(?:e[+-]\d+)?) (s|ms|tokens/s|USD|J)\b")
TWO_KINDS = {"groups": [{"name": "old", "node": "dgx-a100", "nodes": 1}, {"name": "new", "node": "dgx-h100", "nodes": 1}]}
NARROW = {"tp": [1], "cp": [1], "microbatch": [1], "zero_stages": [1], "recompute": ["none"], "schedules": ["1f1b"]}
TWO_NODES = {
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 2},
    "workload": {"kind": "training", "global_batch": 32, "seq_len": 4096},
    "objective": "devices",
    "search": {"tp": [1], "pp": [1], "cp": [1], "microbatch": [1]},
}
SENTENCES: dict[str, dict[str, Any]] = {
    "sizes": TWO_NODES | {"slo": {"min_tokens_per_s": 100000, "confidence": 0.5}},
    "sizes that miss the SLO": {"objective": "devices", "slo": {"min_tokens_per_s": 1e9}},
    "cost": {"objective": "cost"},
    "energy": {"objective": "energy"},
    "node groups in any order": {"cluster": TWO_KINDS, "search": NARROW | {"group_order": "any", "pp": [2]}},
    "replicas by node group": {"cluster": TWO_KINDS, "search": NARROW | {"space": "free", "batch_shares": "by_group"}},
    "idle nodes": {"cluster": {"catalog": "dgx-h100", "nodes": 9}},
    "documents": {
        "workload": {
            "kind": "training",
            "global_batch": 16,
            "seq_len": 512,
            "lengths": {"tokens": [100, 300], "counts": [1, 1], "fill": "padded"},
        }
    },
}


@pytest.mark.parametrize("name", SENTENCES)
def test_every_sentence_is_told_in_the_clusters_time(name: str) -> None:
    request = resolved(training(**(SMALL | SENTENCES[name])))
    assert isinstance(request, TrainingRequest)
    # Targets that are as hard in the cost model's time.
    learned = with_runs(request)
    harder = confident_factor(learned) / confident_factor(request)
    target = request.slo.min_tokens_per_s
    learned = replace(learned, slo=replace(learned.slo, min_tokens_per_s=None if target is None else target / harder))
    plain, told = leaves_of(solve_here(request), str), leaves_of(solve_here(learned), str)
    told.pop(max(each for each in told if each.startswith(".notes")))
    moved = 0
    for place, text in plain.items():
        # Changes are plans of their own, and round what they ask for.
        if place.startswith((".calibration", ".suggestions", ".reason.remedies")):
            continue
        assert TIMES.split(text)[::3] == TIMES.split(told[place])[::3]
        for before, after in zip(TIMES.finditer(text), TIMES.finditer(told[place]), strict=True):
            if "the SLO allows" in text[: before.start()]:
                continue
            factor = harder if text[: before.start()].endswith("up to ") else SCALE
            factor = 1 / factor if before[2] == "tokens/s" else factor
            was, now = (float(each[1].replace(",", "")) for each in (before, after))
            assert now == pytest.approx(was * factor, rel=0.02), (place, text, told[place])
            moved += 1
    assert moved > 0


def test_a_text_of_times_is_a_text_to_all_others() -> None:
    text = TimedWords("takes ", step_seconds(1.5), " s {a step}, ", step_seconds(1.5, promised=True), " s at most")
    assert text == "takes 1.5 s {a step}, 1.5 s at most" and json.loads(json.dumps(text)) == text
    again = pickle.loads(pickle.dumps(text))
    assert again.told(2.0, 3.0) == "takes 3 s {a step}, 4.5 s at most"
    assert TimedWords("so it ", again, ".").told(2.0, 3.0) == "so it takes 3 s {a step}, 4.5 s at most."


def test_a_target_of_time_is_compared_with_what_is_promised() -> None:
    """3 s were "missed" by plans that took 2.555 s or more."""
    fastest = solve_here(resolved(training(**(TWO_NODES | {"objective": "throughput"})))).predicted
    assert fastest is not None and fastest.step_time_s is not None
    limit_s = 1.6 * fastest.step_time_s
    plan = solve_here(resolved(training(**TWO_NODES, slo={"max_step_time_s": limit_s})))
    missed = [each.why_not for each in plan.runners_up if "meets the SLO: each takes" in each.why_not]
    assert missed and all(float(text.split("up to ")[1].split()[0]) > limit_s for text in missed)


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
    assert isinstance(request, TrainingRequest)
    assert in_cluster_time(plan, request) == plan and in_model_time(request) is request


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
