"""Trials of a request as documents and folders, each under the digest of its layout, and those that have run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import PlanNotFoundError
from meshwright.app.base.output_files import write_output
from meshwright.app.base.quoting import json_text
from meshwright.app.launching.exporters import first_export
from meshwright.app.launching.exporters.launch import launch, write_export
from meshwright.app.requests.learned import run_group
from meshwright.app.requests.plan_documents import answer_document, plan_document, read_plan, read_plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.store.fleet import canonical_digest
from meshwright.app.store.plans import PlanStore
from meshwright.app.store.runs import RunFilter, RunOutcome, RunRepository
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import OfWorkers, Workers
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.request import PlanRequest, ServingRequest, Slo, TrainingRequest
from meshwright.solver.serving.trials import ServingPlan, ServingTrial
from meshwright.solver.training.report.trials import Trial

TRIALS_SCHEMA = "meshwright.trials/1"
PLAN_NAME, TRIALS_NAME = "plan.json", "trials.json"
MOST_LOOKED_AT = 1000
"""The latest runs of a model that are looked at for what has run."""

_DECIDED = ("blocks", "devices", "axes", "recompute", "zero_stage", "shard_ranks", "offload", "chunk_layers")


AnyTrial = Trial | ServingTrial


@dataclass(frozen=True, slots=True)
class WrittenTrial:
    """A trial and the folder that holds its plan and its launch files."""

    trial: AnyTrial
    folder: Path


def under_digests(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials whose plans are named by their layouts: runs of two trials of one request are runs of two plans."""
    return tuple(replace(trial, plan=replace(trial.plan, digest=layout_digest(trial.plan))) for trial in trials)


def layout_digest(plan: Plan) -> str:
    """Return ``sha256:<hex>`` of what a plan decides, whatever is predicted of it."""
    document = plan_document(plan)
    # Choices that came later stand where they are made alone, so that older digests stay.
    chosen = [each.name for each in fields(StageChoices)]
    stages = [
        {
            **{name: stage.get(name) for name in _DECIDED},
            **{name: stage[name] for name in chosen if stage.get(name) is not None},
        }
        for stage in document["stages"]
    ]
    kept = ("kind", "model", "devices", "axes", "schedule", "microbatch", "optimizer")
    return canonical_digest({**{name: document.get(name) for name in kept}, "stages": stages})


def not_yet_run(trials: Sequence[Trial], request: TrainingRequest, engine: Engine) -> tuple[Trial, ...]:
    """Return the trials of which no run is stored for this model, hardware and framework."""
    group = run_group(request_document(request))
    assert group is not None, "a resolved request names its hardware"
    wanted = RunFilter(cluster=group.cluster, profile=group.profile, model=request.model.name)
    ran = {run.plan for run in RunRepository(engine).page(wanted, before=None, limit=MOST_LOOKED_AT)}
    store = PlanStore(engine)
    for digest in sorted(ran):
        try:
            ran.add(layout_digest(read_plan(json.loads(store.get(digest)))))
        except PlanNotFoundError:
            # A trial's plan is in its file; its digest is that of its layout already.
            continue
    return tuple(trial for trial in trials if trial.plan.digest not in ran)


def write_trials(trials: Sequence[AnyTrial], request: PlanRequest, folder: Path) -> list[WrittenTrial]:
    """Write each trial's plan and launch files into a folder of its own, and what all are; raises PlanFileError."""
    written = []
    for number, trial in enumerate(trials, start=1):
        place = folder / f"trial-{number}"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanFileError(f"the folder can't be made: {error.strerror}", given=str(place)) from None
        asked = _TRIALS[request.workload.kind].asked(trial, request)
        answered = AnsweredRequest(trial.plan, asked)
        write_output(place / PLAN_NAME, json_text(answer_document(answered)) + "\n", what="plan")
        exported = first_export(trial.plan, asked, request.search.launcher)
        if exported is not None:
            write_export(launch(answered, exported.launcher), place)
        written.append(WrittenTrial(trial, place))
    write_output(folder / TRIALS_NAME, json_text(trials_document(trials)) + "\n", what="trials")
    return written


def trials_document(trials: Sequence[AnyTrial]) -> dict[str, Any]:
    """Return the trials in order, each with its plan's figures and what its outcome would tell."""
    return {"schema": TRIALS_SCHEMA, "trials": [_trial_document(trial) for trial in trials]}


def _trial_document(trial: AnyTrial) -> dict[str, Any]:
    predicted = trial.plan.predicted
    assert predicted is not None, "a trial is a feasible plan"
    said: dict[str, Any] = {"plan": trial.plan.digest, "summary": summary_of(trial.plan)}
    return (
        said
        | _TRIALS[trial.plan.kind].figures(trial, predicted)
        | {
            "tokens_per_s": predicted.tokens_per_s,
            "peak_memory_bytes": predicted.peak_memory_bytes,
            "expected_regret": trial.expected_regret,
            "tells": list(trial.tells),
        }
    )


def _training_figures(trial: Trial, predicted: Predicted) -> dict[str, Any]:
    return {"step_time_s": predicted.step_time_s, "chance_out_of_memory": trial.chance_out_of_memory}


def _serving_figures(trial: ServingTrial, predicted: Predicted) -> dict[str, Any]:
    latencies = {"ttft_p95_s": predicted.ttft_p95_s, "tpot_p95_s": predicted.tpot_p95_s}
    return {"devices": trial.plan.devices, "chance_kept": trial.chance_kept, **latencies}


@dataclass(frozen=True, slots=True)
class KindTrials:
    """The request that a trial of a kind of workload answers, given that of all, and the figures that are its kind's own."""

    asked: Callable[[Any, PlanRequest], PlanRequest]
    figures: Callable[[Any, Predicted], dict[str, Any]]


_TRIALS: Mapping[str, KindTrials] = {
    "training": KindTrials(lambda trial, request: request, _training_figures),
    "serving": KindTrials(lambda trial, request: trial.request, _serving_figures),
}
"""Trials by the kind of workload."""


def summary_of(plan: Plan) -> str:
    """Return the degrees of a plan, the micro-batch and recomputation of training, the workers and limits of serving, in
    words."""
    if isinstance(plan.layout, OfWorkers):
        return " and ".join(_workers_in_words(workers) for workers in plan.layout.all_workers)
    document = json.loads(compact_json(plan_document(plan)))
    axes = _axes_in_words(document["axes"])
    modes = " and ".join(dict.fromkeys(stage["recompute"] for stage in document["stages"]))
    return f"{axes}, micro-batches of {document['microbatch']['size']}, recompute {modes}"


def _workers_in_words(workers: Workers) -> str:
    axes = _axes_in_words(asdict(replace(workers.axes, dp=1)))
    limits = f"{workers.max_num_seqs} sequences and {workers.max_num_batched_tokens} tokens"
    return f"{workers.count} x {axes}, at most {limits} a step"


def _axes_in_words(axes: Mapping[str, Any]) -> str:
    return " x ".join(f"{name} {n}" for name, n in axes.items() if isinstance(n, int) and n > 1) or "one device"


# Trials of a serving request beside the runs that are stored: which plans have run, and whether they kept their targets.

MOST_LAYOUTS_LOOKED_AT = 1000
"""The latest runs of a model that are looked at for what has run."""


def under_serving_digests(trials: tuple[ServingTrial, ...]) -> tuple[ServingTrial, ...]:
    """Return the trials whose plans are named by their layouts and the load: runs of two trials are runs of two plans."""
    return tuple(replace(t, plan=replace(t.plan, digest=serving_layout_digest(t.plan, t.request))) for t in trials)


def serving_layout_digest(plan: Plan, request: ServingRequest) -> str:
    """Return ``sha256:<hex>`` of what a plan decides and the load that it is for, whatever is predicted of it."""
    layout = plan.layout
    assert isinstance(layout, OfWorkers), "a feasible serving plan"
    workers = [
        {
            "count": each.count,
            "limits": [each.max_num_seqs, each.max_num_batched_tokens],
            "axes": asdict(each.axes),
            "devices": [asdict(devices) for devices in each.device_ranges],
        }
        for each in layout.all_workers
    ]
    decided = {"kind": plan.kind, "model": plan.model, "form": type(layout).__name__, "workers": workers}
    return canonical_digest(decided | {"shares": list(layout.shares), "workload": request_document(request)["workload"]})


def outcomes_of(request: ServingRequest, engine: Engine) -> Callable[[ServingPlan], bool | None]:
    """Return what says of a plan whether its latest run kept the request's targets, None where none tells."""
    group = run_group(request_document(request))
    assert group is not None, "a resolved request names its hardware"
    wanted = RunFilter(cluster=group.cluster, profile=group.profile, model=request.model.name)
    store, outcomes = PlanStore(engine), dict[str, bool]()
    for run in RunRepository(engine).page(wanted, before=None, limit=MOST_LAYOUTS_LOOKED_AT):
        kept = _has_kept(json.loads(run.run), request.slo)
        if kept is not None:
            outcomes.setdefault(_digest_of(run.plan, store), kept)
    return lambda each: outcomes.get(serving_layout_digest(each.plan, each.request))


def _digest_of(digest: str, store: PlanStore) -> str:
    """The digest by layout of a plan that ran; that of a trial's plan, which is in its file, is one already."""
    try:
        answered = read_plan_document(json.loads(store.get(digest)))
    except PlanNotFoundError:
        return digest
    if not isinstance(answered.request, ServingRequest):
        return digest
    return serving_layout_digest(answered.plan, answered.request)


def _has_kept(run: Mapping[str, Any], slo: Slo) -> bool | None:
    """True of a run below all targets, False of one above a target or out of memory, None where a figure is missing."""
    if run["outcome"] == RunOutcome.OUT_OF_MEMORY:
        return False
    kept: list[bool | None] = []
    for name, target_ms in (("ttft_p95_s", slo.p95_ttft_ms), ("tpot_p95_s", slo.p95_tpot_ms)):
        if target_ms is not None:
            kept.append(run[name] <= target_ms / 1e3 if name in run else None)
    return False if False in kept else None if None in kept else True
