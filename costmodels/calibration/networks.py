"""Calibrations of the network between nodes: priors by kind of network, and fabrics that were measured on a cluster.

A node type names one as its ``network``: a kind ("infiniband"), whose prior was fitted to training runs of other clusters, or
a measured one by its digest. A prior says which share of its line rate a network gives to large messages, a lognormal
distribution over clusters of the kind. A measured fabric has curves by collective and ranks of a group on each node.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any

from meshwright.costmodels.calibration.calibration import calibration_key, document_in_force, is_measured
from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.calibration.kernels import KernelError
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, did_you_mean

FABRIC_SCHEMA = "meshwright.fabric-calibration/1"

FABRIC_KEY_PREFIX = "fabric."
"""The start of keys of measured fabrics; no device's key begins so."""

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 100
LARGEST, LONGEST_SHOWN = 1e15, 200

NORMAL_P95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class FabricCurve:
    """Time of a collective between nodes whose bytes take ``line_s`` at the line rate of a group's share of the cards:

        latency_s + rank_s (n - 1) + root sqrt(line_s) + line_s / share

    The root is for pipelines that fill slowly, as inside a node; its unit is the root of a second.
    """

    latency_s: float
    rank_s: float
    root: float
    share: float

    def seconds(self, line_s: Any, n: int) -> Any:
        """Seconds of groups of n ranks; numbers or arrays."""
        return self.latency_s + self.rank_s * (n - 1) + self.root * line_s**0.5 + line_s / self.share


@dataclass(frozen=True, slots=True)
class NetworkCalibration:
    """The network between nodes.

    name        kind of a prior, or key of a measured fabric
    share       share of the cards' line rate that large messages reach: the median over clusters of a kind
    rank_s      seconds that each rank of a group but the first adds to a collective
    slow, fast  shares of line rate that 5 and 95% of the clusters of a kind stay below; of a measured fabric, by its error
    curves      by collective, then ranks of a group on each node; none of a prior
    error       relative error of a collective's time
    basis       where it was measured
    """

    name: str
    share: float
    rank_s: float
    slow: float
    fast: float
    error: KernelError
    basis: str
    curves: Mapping[Collective, Mapping[int, FabricCurve]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Return True for a fabric that was measured on its cluster."""
        return bool(self.curves)

    @property
    def factors(self) -> tuple[float, float]:
        """True over predicted time of large messages in the fastest and the slowest of the networks that 90% lie between."""
        return self.share / self.fast, self.share / self.slow

    @property
    def log_sigma(self) -> float:
        """Spread of the logarithm of the share over clusters of the kind."""
        return math.log(self.fast / self.slow) / (2.0 * NORMAL_P95)

    def curve(self, kind: Collective, ranks_per_node: int) -> FabricCurve | None:
        """The curve measured with the nearest number of ranks on a node (by ratio, the smaller of two); None of a prior. A
        broadcast has that of an all-gather, and a collective that was not measured none."""
        measured = self.curves.get(Collective.ALL_GATHER if kind is Collective.BROADCAST else kind)
        if not measured:
            return None
        return measured[min(measured, key=lambda here: (abs(math.log(here / ranks_per_node)), here))]

    def share_of(self, kind: Collective) -> float:
        """Share of line rate that large messages of a collective reach with one rank of each group on a node."""
        curve = self.curve(kind, 1)
        return self.share if curve is None else curve.share


def network_calibration(name: str) -> NetworkCalibration:
    """The prior of a kind of network, or the measured fabric of a name; raises ClusterError when there is none."""
    return _measured(name) if is_measured(name) else _prior(name)


def network_kinds() -> tuple[str, ...]:
    """Every kind of network that has a prior, by name."""
    return tuple(sorted(_priors()))


def fabric_key(cluster: str) -> str:
    """The key of the calibration of a cluster's network: its registered name, or the words that say it, as letters and digits
    of a key."""
    return FABRIC_KEY_PREFIX + (_NOT_IN_KEYS.sub("-", cluster).strip("-")[:_LONGEST_NAME] or "cluster")


def is_fabric_key(key: str) -> bool:
    """Return True if a calibration of this key is of a measured fabric."""
    return key.startswith(FABRIC_KEY_PREFIX)


@lru_cache(maxsize=64)
def _measured(name: str) -> NetworkCalibration:
    return read_network(calibration_key(name), document_in_force(name))


@cache
def _prior(name: str) -> NetworkCalibration:
    known = _priors()
    if name not in known:
        raise ClusterError(
            "no kind of network of this name",
            given=name,
            allowed=", ".join(sorted(known)),
            remedy=did_you_mean(name, known, otherwise="leave it out, or measure the network: meshwright calibrate fabric"),
        )
    document = known[name]
    return read_network(name, {**known[document["base"]], **document} if "base" in document else document)


@cache
def _priors() -> Mapping[str, Mapping[str, Any]]:
    folder = files("meshwright.costmodels.hardware").joinpath("calibrations", "networks")
    entries = (entry for entry in folder.iterdir() if entry.name.endswith(".json"))
    return {entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8")) for entry in entries}


def read_network(name: str, document: Mapping[str, Any]) -> NetworkCalibration:
    """The calibration that a decoded file or a measured document describes."""
    return NetworkCalibration(
        name=name,
        share=document["share"],
        rank_s=document["rank_s"],
        slow=document["slow"],
        fast=document["fast"],
        error=KernelError(**document["error"]),
        basis=document["basis"],
        curves={
            Collective(kind): {int(here): FabricCurve(**curve) for here, curve in by_shape.items()}
            for kind, by_shape in document.get("curves", {}).items()
        },
    )


def line_rates(cluster: Cluster) -> dict[str, float]:
    """Bytes/s of the network a device of each node type, by its name: what a measured fabric is relative to."""
    nodes = (group.node for group in cluster.groups)
    return {node.name: node.inter.bytes_per_s / node.devices_per_node for node in nodes}


def measures(document: Mapping[str, Any], cluster: Cluster) -> bool:
    """Return True if a measured fabric is of this cluster's node types at their line rates: of all of them."""
    known, rates = document["line_rates"], line_rates(cluster)
    return all(name in known and math.isclose(known[name], rate, rel_tol=1e-6) for name, rate in rates.items())


def check_fabric_calibration(document: Mapping[str, Any]) -> None:
    """Refuse a document that nothing can be computed with; raises ClusterError."""
    try:
        network = read_network(document["key"], document)
        curves = [curve for by_shape in network.curves.values() for curve in by_shape.values()]
        numbers = [
            network.share,
            network.slow,
            network.fast,
            *(curve.share for curve in curves),
            *document["line_rates"].values(),
        ]
        costs = [network.rank_s, network.error.median, network.error.p95]
        costs += [cost for curve in curves for cost in (curve.latency_s, curve.rank_s, curve.root)]
        good = (
            isinstance(document["key"], str)
            and is_fabric_key(document["key"])
            and network.is_measured
            and all(isinstance(name, str) for name in document["line_rates"])
            and all(here > 0 for by_shape in network.curves.values() for here in by_shape)
            and isinstance(network.basis, str)
            and isinstance(network.error.basis, str)
            and all(_is_number(value) and 1e-9 < value <= LARGEST for value in numbers)
            and all(curve.share <= 1.0 for curve in curves)
            and all(_is_number(value) and 0.0 <= value <= LARGEST for value in costs)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(f"{type(error).__name__}: {error}") from None
    if not good:
        raise _unusable(str(document.get("curves"))[:LONGEST_SHOWN])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _unusable(given: str) -> ClusterError:
    return ClusterError(
        "this is no calibration of a network between nodes",
        given=given,
        allowed="key, line_rates, share, curves and error, as 'meshwright calibrate show --json' prints",
    )
