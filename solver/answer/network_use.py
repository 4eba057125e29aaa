"""The networks between nodes that a prediction rests on: measured fabrics, and priors of their kinds."""

from __future__ import annotations

from meshwright.costmodels.calibration.networks import NetworkCalibration, network_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.predicted import CalibrationUse


def networks_between(cluster: Cluster) -> dict[str, NetworkCalibration]:
    """The calibration of each network that joins the nodes, by its name; none of a single node."""
    if sum(group.nodes for group in cluster.groups) == 1:
        return {}
    return {name: network_calibration(name) for name in sorted({group.node.network for group in cluster.groups})}


def networks_used(cluster: Cluster) -> tuple[CalibrationUse, ...]:
    """The networks of a cluster as calibrations that a plan rests on, each with its error, and whether it was measured."""
    return tuple(
        CalibrationUse(
            id=f"{name}/network",
            device=", ".join(sorted({group.node.name for group in cluster.groups if group.node.network == name})),
            median_error=network.error.median,
            p95_error=network.error.p95,
            basis=_in_words(network),
        )
        for name, network in networks_between(cluster).items()
    )


def _in_words(network: NetworkCalibration) -> str:
    if network.is_measured:
        return f"network between nodes: measured, {network.basis}"
    fastest, slowest = network.factors
    ends = f"{fastest - 1.0:+.0%} to {slowest - 1.0:+.0%} of its time"
    return (
        f"network between nodes: not measured, prior of {network.name}, {ends}; "
        f"{network.basis}; 'meshwright calibrate fabric' measures it"
    )
