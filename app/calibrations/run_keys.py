"""The key of what is learned from runs: the hardware that a request names, and what runs the model on it.

Runs are shared by all models, batches and numbers of nodes of one hardware under one framework.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from meshwright.costmodels.calibration.from_runs import RUN_KEY_PREFIX

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


def run_group(request: Mapping[str, Any]) -> RunGroup | None:
    """Return the group of a resolved request's document; None for a document that is no request."""
    try:
        cluster, workload, search = request["cluster"], request["workload"], request["search"]
        runs_it = search["launcher"] if workload["kind"] == "training" else search["engine"]
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
