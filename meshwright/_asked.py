"""The questions: frozen values that the builders make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.solver.problem.request import PlanRequest


@dataclass(frozen=True)
class Model:
    """A model: its name and parameters; ``source`` is a request's ``model``."""

    name: str
    parameters: int
    source: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Node:
    """A node type of numbers; ``source`` is the node type in a request."""

    name: str
    devices: int
    source: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Cluster:
    """A cluster: how many devices it has; ``source`` is a request's ``cluster``."""

    devices: int
    source: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Workload:
    """The work of the model, "training" or "serving"; ``source`` is a request's ``workload``."""

    kind: str
    source: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Request:
    """A request that can be planned: checked, its files read and its names looked up."""

    _request: PlanRequest

    @property
    def kind(self) -> str:
        """The workload's kind: "training" or "serving"."""
        return self._request.workload.kind

    @property
    def model(self) -> str:
        """The model's name."""
        return self._request.model.name

    @property
    def devices(self) -> int:
        """The number of devices of the cluster."""
        return self._request.cluster.n_devices

    @cached_property
    def digest(self) -> str:
        """The key of the plan: requests that ask the same of this version have the same."""
        return keyed_request(self._request).digest

    @property
    def document(self) -> dict[str, Any]:
        """The request as a ``meshwright.request/1`` document, every default written out."""
        return request_document(self._request)

    def __repr__(self) -> str:
        return f"<Request: {self.kind} of {self.model} on {self.devices} devices>"
