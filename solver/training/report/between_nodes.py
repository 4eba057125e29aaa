"""The time that a training step waits for networks between nodes that nobody measured."""

from __future__ import annotations

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.network_use import networks_between
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.declared.rank_order import RankOrder


def unmeasured_wait_s(cluster: Cluster, axes: Axes, breakdown: TimeBreakdown, *, choices: MeshChoices) -> float:
    """Seconds of a step that devices wait for networks between nodes, times the widest spread among those of the cluster that
    nobody measured; 0 where all were measured. An axis leaves a node where it and the axes inside it have more ranks than the
    smallest node."""
    spread = widest_spread(cluster)
    if spread == 0.0:
        return 0.0
    per_node = min(group.node.devices_per_node for group in cluster.groups)
    experts = (axes.etp or axes.tp) * axes.ep
    run, everything = axes.tp * axes.cp, axes.tp * axes.cp * axes.dp * axes.pp
    outermost = choices.rank_order is RankOrder.DP_OUTERMOST
    sent = (
        (axes.tp, breakdown.tp_comm_s),
        (run, breakdown.cp_comm_s),
        (everything if outermost and experts > run else experts, breakdown.ep_comm_s),
        (everything if outermost else run * axes.dp, breakdown.dp_comm_s),
        (run * axes.pp if outermost else everything, breakdown.pp_comm_s),
    )
    return spread * sum(seconds for ranks, seconds in sent if ranks > per_node)


def widest_spread(cluster: Cluster) -> float:
    """The widest spread of the logarithm of a network's share of line rate, among unmeasured networks that join the nodes."""
    return max((network.log_sigma for network in networks_between(cluster).values() if not network.is_measured), default=0.0)
