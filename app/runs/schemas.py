"""The answers of the endpoints of runs, as Pydantic models, and examples of their bodies."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from meshwright.app.http.answers import ANSWER
from meshwright.app.runs.document import RUN_SCHEMA, RunOutcome
from meshwright.app.runs.repository import StoredRun

_PLAN = "sha256:" + "0f" * 32

RUN_EXAMPLES: dict[str, Any] = {
    "completed": {
        "summary": "A training run that completed",
        "value": {
            "schema": RUN_SCHEMA,
            "plan": _PLAN,
            "step_time_s": 7.1,
            "peak_memory_bytes": 76235669504,
            "label": "job 811",
        },
    },
    "out_of_memory": {
        "summary": "A run that went out of memory",
        "value": {"schema": RUN_SCHEMA, "plan": _PLAN, "outcome": "out_of_memory"},
    },
    "serving": {
        "summary": "A benchmark of a deployment",
        "value": {"schema": RUN_SCHEMA, "plan": _PLAN, "tokens_per_s": 3603.2, "ttft_p95_s": 0.41, "tpot_p95_s": 0.018},
    },
}


class RunItem(BaseModel):
    """A stored run."""

    model_config = ANSWER

    id: str = Field(description="sha256:HEX of the run: the same run reported twice has one.")
    created_at: datetime
    cluster: str = Field(description="The hardware that it ran on: its node types, and a digest of what they are.")
    profile: str = Field(description="The framework's profile that the request states, else its launcher or engine.")
    model: str
    plan: str = Field(description="Digest of the plan that ran.")
    kind: str
    outcome: RunOutcome
    measured: dict[str, float] = Field(description="Figures of the run, by name.")
    predicted: dict[str, float] = Field(description="The same figures as predicted before anything was learned from runs.")
    software: str
    label: str


class RunAnswer(RunItem):
    """The answer to a POST of a run."""

    calibration: str | None = Field(description="Name of the calibration that was learned with it, if any was.")
    stale: int = Field(description="Questions whose current plan became stale by it.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class RunPage(BaseModel):
    """A page of runs, newest first."""

    model_config = ANSWER

    runs: list[RunItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def run_item(stored: StoredRun) -> RunItem:
    """Return the run as the endpoints show it."""
    run, predicted = json.loads(stored.run), json.loads(stored.predicted)
    figures = {name: value for name, value in run.items() if isinstance(value, int | float)}
    said = {name: value for name, value in predicted.items() if isinstance(value, int | float)}
    return RunItem(
        id=stored.digest,
        created_at=stored.created_at,
        cluster=stored.cluster,
        profile=stored.profile,
        model=stored.model,
        plan=stored.plan,
        kind=stored.kind,
        outcome=RunOutcome(stored.outcome),
        measured=figures,
        predicted=said,
        software=run.get("software", ""),
        label=run.get("label", ""),
    )
