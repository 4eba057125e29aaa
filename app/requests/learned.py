"""Calibrations that were learned from measured runs, as a part of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from meshwright.app.calibrations.run_keys import run_group
from meshwright.app.documents.records import to_document
from meshwright.app.errors import DocumentError, FieldError
from meshwright.app.requests.document import RequestDocument, RunsUse
from meshwright.costmodels.calibration.calibration import Calibration, calibration_key
from meshwright.costmodels.calibration.from_runs import is_run_key, run_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.model.memory_law import MemoryOutcome, Outcome, learned_law
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.implementation import implementation_of

MOST_SCALE = 10.0
"""The most that memory may be over what is predicted, in a law that a request states."""


class Learned(Protocol):
    """Where calibrations that were learned from runs are found."""

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest calibration of a key; None when there is none."""
        ...

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return True if requests of such a cluster, registered or not, use what was learned from runs."""
        ...


def with_runs(
    source: RequestDocument, cluster: Cluster, given: Sequence[Calibration], learned: Learned, *, is_registered: bool
) -> tuple[Calibration, ...]:
    """Return the given calibrations, and what was learned from runs of this hardware and framework, unless the request ignores
    it or names such a calibration itself. Raises DocumentError for one that was learned elsewhere."""
    named = [calibration for calibration in given if is_run_key(calibration_key(calibration.name))]
    looks = source.runs is RunsUse.NEWEST and not named and learned.follows_runs(is_registered=is_registered)
    if not (named or looks):
        return tuple(given)
    key = _key_of(source, cluster)
    elsewhere = [calibration for calibration in named if calibration_key(calibration.name) != key]
    if elsewhere:
        raise _learned_elsewhere(elsewhere[0], key)
    newest = learned.newest_calibration(key) if looks else None
    return tuple(given) if newest is None else (*given, newest)


def with_memory_of_runs(workload: TrainingWorkload, search: Search, calibrations: Sequence[Calibration]) -> TrainingWorkload:
    """Return the workload with the law of memory after the runs of its calibrations, unless it states a law itself."""
    learned, stated = run_calibration(calibrations), workload.implementation
    if learned is None or not learned.document["memory"] or (stated is not None and stated.memory is not None):
        return workload
    outcomes = [
        MemoryOutcome(Outcome(each["outcome"]), each["median_bytes"], each["told_bytes"]) for each in learned.document["memory"]
    ]
    origin = f"{len(outcomes)} measured runs of this framework on this hardware"
    law = learned_law(implementation_of(workload, search).memory, outcomes, origin=origin)
    # Runs that contradict a prediction by more than this were of something else; a plan is still to be had.
    law = replace(law, scale=min(max(law.scale, 1.0 / MOST_SCALE), MOST_SCALE))
    return replace(workload, implementation=replace(stated or StatedImplementation(), memory=law))


def _key_of(source: RequestDocument, cluster: Cluster) -> str:
    workload, search = source.workload, source.search
    stated = workload.implementation if isinstance(workload, TrainingWorkload) else None
    group = run_group(
        {
            "cluster": to_document(Cluster, cluster),
            "workload": {"kind": workload.kind, "implementation": {"profile": stated.profile if stated else None}},
            "search": {"launcher": search.launcher.value, "engine": search.engine.value},
        }
    )
    assert group is not None, "all that a group is told by is there"
    return group.key


def _learned_elsewhere(calibration: Calibration, allowed: str) -> DocumentError:
    fault = FieldError(
        "calibrations", "learned from runs of other hardware, another framework or engine", calibration.name, allowed
    )
    return DocumentError("this request can't be used", (fault,))
