"""Networks between nodes: priors by kind, and fabrics that were measured on a cluster."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.evidence.measuring.fabric import fit_measurements
from meshwright.costmodels.calibration.calibration import Calibration, calibrations_in_force
from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.calibration.networks import check_fabric_calibration, network_calibration, network_kinds
from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.fitting.samples import SampleError
from meshwright.costmodels.hardware import node_type, node_types
from meshwright.costmodels.network.collectives import collective_error, collective_s, line_share
from tests.support.fabric import LATENCY_S, RANK_S, SHARE, measurements

CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 8),))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return fit_measurements(measurements(), CLUSTER, "prod").calibration


def on_network(name: str, n: int, stride: int = 1) -> GroupTopology:
    """Topology of a group on eight nodes that name a network."""
    group = replace(CLUSTER.groups[0], node=replace(CLUSTER.groups[0].node, network=name))
    return group_topology(Cluster((group,)), n=n, stride=stride)


@pytest.mark.parametrize("kind", network_kinds())
def test_every_kind_has_a_prior_that_says_how_wide_it_is(kind: str) -> None:
    network = network_calibration(kind)
    assert 0.0 < network.slow < network.share < network.fast <= 1.0 and not network.is_measured
    fastest, slowest = network.factors
    assert fastest < 1.0 < slowest
    assert math.exp(1.645 * network.log_sigma) == pytest.approx(math.sqrt(slowest / fastest), rel=1e-3)
    assert network.basis and network.error.basis


def test_every_node_type_names_a_kind_that_is_known() -> None:
    assert {node.network for node in node_types()} <= set(network_kinds())
    with pytest.raises(ClusterError, match="no kind of network"):
        network_calibration("infinband")


@pytest.mark.parametrize("kind", Collective)
@pytest.mark.parametrize(("n", "stride"), [(2, 8), (8, 8), (16, 4), (16, 1), (64, 1)])
def test_a_measured_fabric_gives_back_the_law_that_it_was_measured_with(
    calibration: Calibration, kind: Collective, n: int, stride: int
) -> None:
    topology = on_network(calibration.name, n, stride)
    size = 2.0**24
    with calibrations_in_force([calibration]):
        found = collective_s(kind, size, topology)
    expected = LATENCY_S + size * line_share(kind, n, topology.ranks_per_node) / topology.inter_bytes_per_s / SHARE
    # Pairs were measured between two ranks only: no cost per rank.
    expected += RANK_S * (1 if kind is Collective.SEND_RECV else n - 1)
    if kind is Collective.SEND_RECV and n > 2:
        return
    assert found == pytest.approx(expected, rel=0.02)


def test_a_fabric_that_was_measured_states_its_own_error(calibration: Calibration) -> None:
    with calibrations_in_force([calibration]):
        assert collective_error(on_network(calibration.name, 64)).p95 < 0.02
    assert collective_error(on_network("infiniband", 64)).p95 > 0.5
    assert calibration.name.startswith("fabric.prod@sha256:")
    scores = {score["name"]: score for score in calibration.document["scores"]}
    assert scores["all_reduce/1 a node"]["unseen"][1] < 0.02, "the largest group, left out"


def test_measurements_of_another_cluster_are_refused() -> None:
    for nodes, cluster, problem in (
        (8, Cluster((NodeGroup("a", node_type("gb200-nvl72"), 8),)), "another number of devices"),
        (8, Cluster((NodeGroup("a", node_type("dgx-h100"), 4),)), "none of the cluster"),
    ):
        with pytest.raises(SampleError, match=problem):
            fit_measurements(measurements(nodes), cluster, "prod")
    slow = replace(CLUSTER.groups[0].node, inter=replace(CLUSTER.groups[0].node.inter, bytes_per_s=100e9))
    with pytest.raises(SampleError, match="faster than the network"):
        fit_measurements(measurements(), Cluster((NodeGroup("a", slow, 8),)), "prod")


def test_too_few_sizes_are_refused() -> None:
    document = measurements()
    rows = [row for row in document["rows"] if row["message_bytes"] <= 2**14]
    with pytest.raises(SampleError, match="too few message sizes"):
        fit_measurements({**document, "rows": rows}, CLUSTER, "prod")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"rows": []},
        {"nodes": 0},
        {"rows": [{"collective": "all_reduce"}]},
    ],
)
def test_files_that_the_script_did_not_write_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        fit_measurements({**measurements(), **change}, CLUSTER, "prod")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "1", None, True])
def test_documents_with_a_number_that_is_none_are_refused(calibration: Calibration, value: object) -> None:
    """Every number that times are computed with, one after another."""
    check_fabric_calibration(calibration.document)
    paths = [
        path
        for path in _numbers(calibration.document)
        if path[0] in ("share", "slow", "fast", "rank_s", "curves", "line_rates")
    ]
    assert len(paths) > 50
    for path in paths:
        document = copy.deepcopy(dict(calibration.document))
        held: Any = document
        for part in path[:-1]:
            held = held[part]
        held[path[-1]] = value
        with pytest.raises(ClusterError):
            check_fabric_calibration(document)


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, (*path, name))
    elif isinstance(value, int | float):
        yield path
