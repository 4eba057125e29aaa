"""Calibrations that were learned from measured runs, as a part of a request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import rfc8785

from meshwright.app.base.errors import DocumentError, FieldError
from meshwright.app.base.figures import counted
from meshwright.app.base.records import to_document
from meshwright.app.requests.document import RequestDocument, RunsUse
from meshwright.costmodels.calibration.calibration import Calibration, calibration_key
from meshwright.costmodels.calibration.from_runs import RUN_KEY_PREFIX, is_run_key, run_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.model.memory_law import MemoryEvidence, MemoryOutcome, learned_law
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
        MemoryOutcome(MemoryEvidence(each["outcome"]), each["median_bytes"], each["told_bytes"])
        for each in learned.document["memory"]
    ]
    origin = f"{counted(len(outcomes), 'measured run')} of this framework on this hardware"
    law = learned_law(implementation_of(workload, search).memory, outcomes, origin=origin)
    # Runs that contradict a prediction by more than this were of something else; a plan is still to be had.
    law = replace(law, scale=min(max(law.scale, 1.0 / MOST_SCALE), MOST_SCALE))
    return replace(workload, implementation=replace(stated or StatedImplementation(), memory=law))


def _key_of(source: RequestDocument, cluster: Cluster) -> str:
    workload, search = source.workload, source.search
    stated = workload.implementation
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


# The key of what is learned from runs: the hardware that a request names, and what runs the model on it.
#
# Runs are shared by all models, batches and numbers of nodes of one hardware under one framework.

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_DIGITS, _LONGEST_PART = 10, 60


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs that are learned from together: those of one hardware and one profile."""

    cluster: str
    profile: str

    @property
    def key(self) -> str:
        """Key of the calibration that is learned from these runs."""
        return f"{RUN_KEY_PREFIX}{self.cluster}.{self.profile}"


_RUNS_IT = {"training": "launcher", "serving": "engine"}
"""The field of a search that says what runs each kind of workload."""


def run_group(request: Mapping[str, Any]) -> RunGroup | None:
    """Return the group of a resolved request's document; None for a document that is no request."""
    try:
        cluster, workload, search = request["cluster"], request["workload"], request["search"]
        runs_it = search[_RUNS_IT[workload["kind"]]]
        stated = (workload.get("implementation") or {}).get("profile")
        return RunGroup(_hardware_name(cluster, cluster["groups"]), _part(str(stated or runs_it)))
    except (KeyError, TypeError):
        return None


def _hardware_name(cluster: Mapping[str, Any], groups: list[Mapping[str, Any]]) -> str:
    """The names of the node types and a digest of what makes them what they are. The number of nodes is left out."""
    nodes = {node["name"]: node for node in (group["node"] for group in groups)}
    facts = [
        {
            "name": name,
            "devices_per_node": node["devices_per_node"],
            "device": node["device"]["name"],
            "memory_bytes": node["device"]["memory_bytes"],
            "intra_bytes_per_s": node["intra"]["bytes_per_s"],
            "inter_bytes_per_s": node["inter"]["bytes_per_s"],
        }
        for name, node in sorted(nodes.items())
    ]
    whole = {"nodes": facts, "oversubscription": cluster["oversubscription"]}
    digest = hashlib.sha256(rfc8785.dumps(whole)).hexdigest()[:_DIGEST_DIGITS]
    return f"{_part('-'.join(sorted(nodes)))}-{digest}"


def _part(text: str) -> str:
    """The text as part of a key, which has letters, digits, '_' and '-' only."""
    return _NOT_IN_KEYS.sub("-", text)[:_LONGEST_PART] or "none"
