"""Bytes that move when a training run goes from one plan to another, by device, and how long that takes at least.

What moves is what a checkpoint holds: weights and optimizer state. Gradients are made anew. A device keeps what its old and
its new pieces share and receives the rest from where it is (the idea of HotSPa, SOSP 2024: switch between parallel layouts
through the network instead of storage).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.costmodels.calibration.collectives import Collective, collective_calibration
from meshwright.costmodels.calibration.networks import network_calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.memory.training_state import state_bytes_per_parameter
from meshwright.costmodels.model.operators import Operator, Weight
from meshwright.solver.answer.layouts import ByGroup, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import optimizer_of, pipelines_of, placement_of
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.blocks.tp_strategies import REPLICATE, Strategy
from meshwright.solver.problem.graph import ModelGraph, WeightOwner
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.switching.pieces import LOST, Held, IntArray, Pieces, SwitchTraffic, stored_pieces, traffic
from meshwright.solver.training.costs.state_memory import block_optimizer


@dataclass(frozen=True, eq=False)
class Switch:
    """The bytes that move, by device of the new plan's cluster, and the least time of it.

    fabric_s    of the busiest device, over the fabric inside its node
    network_s   of the busiest node, over its network cards
    """

    weights: SwitchTraffic
    optimizer: SwitchTraffic
    fabric_s: float
    network_s: float

    @cached_property
    def total(self) -> SwitchTraffic:
        """Weights and optimizer state together."""
        return self.weights.plus(self.optimizer)

    @property
    def moved_bytes(self) -> float:
        """All that devices receive."""
        return float(self.total.received.sum())

    @property
    def storage_bytes(self) -> float:
        """Of that, what no device holds any more: it must be read from a checkpoint."""
        return float(self.total.from_storage.sum())

    @property
    def kept_share(self) -> float:
        """Share of the new plan's state that is where it is needed already."""
        kept = float(self.total.kept.sum())
        return kept / (kept + self.moved_bytes)

    @property
    def time_s(self) -> float:
        """Least time: fabric and network at once, each at its full rate; reading from storage is not counted."""
        return max(self.fabric_s, self.network_s)


def switch_bytes(
    old: AnsweredRequest, new: AnsweredRequest, *, device_of_old_rank: Sequence[int | None] | None = None
) -> Switch:
    """Return the bytes that every device receives and sends when the new plan follows the old one.

    ``device_of_old_rank`` names, for each device of the old plan's cluster, its rank in the new plan's cluster, None where it
    is gone; left out, devices keep their ranks, and those beyond the new cluster are gone. Raises PlanFileError unless both
    are plans that train one model with one precision and optimizer.
    """
    workload = _workload_of_both(old, new)
    cluster = new.request.cluster
    devices = _devices(old.request.cluster, cluster, device_of_old_rank)
    node_of = _nodes(cluster)
    optimizers = {
        block.name: block_optimizer(optimizer_of(new.plan, workload), new.request.model, block.name)
        for block in new.request.model.blocks
    }
    of_parameter = {
        kind: state_bytes_per_parameter(
            precision=workload.precision,
            gradient_dtype=workload.gradient_dtype,
            optimizer=kind,
            zero_stage=0,
            shards=1,
        )
        for kind in optimizers.values()
    }
    weights, optimizer = SwitchTraffic.none(cluster.n_devices), SwitchTraffic.none(cluster.n_devices)
    before, after = _Layout(old, devices), _Layout(new, np.arange(cluster.n_devices, dtype=np.int64))
    for (weight, old_stages, new_stages), count in _stored_weights(before, after).items():
        moved_weights, moved_optimizer = (
            traffic(
                before.held(weight, old_stages, sharded_from=stage),
                after.held(weight, new_stages, sharded_from=stage),
                node_of,
            )
            for stage in (_ZERO_WEIGHTS, _ZERO_OPTIMIZER)
        )
        each = of_parameter[optimizers[weight.block]]
        weights = weights.plus(moved_weights, times=count * each.weights)
        optimizer = optimizer.plus(moved_optimizer, times=count * each.optimizer)
    total = weights.plus(optimizer)
    return Switch(weights, optimizer, _fabric_s(cluster, total), _network_s(cluster, total, node_of))


_ZERO_WEIGHTS, _ZERO_OPTIMIZER = 3, 1
"""ZeRO stage from which weights, and optimizer state, are split over dp x cp (Rajbhandari et al. 2020, section 5)."""


class _Layout:
    """Where a plan puts each weight."""

    def __init__(self, answered: AnsweredRequest, device_of_rank: IntArray):
        self._pipelines, self._model = pipelines_of(answered.plan), answered.request.model
        self._device_of_rank = device_of_rank[_places_of_ranks(answered)]
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def stages_of(self) -> dict[tuple[int, WeightOwner], tuple[int, ...]]:
        """For each weight with its own storage, by the layer that owns it: the stages that hold it."""
        owner_layer = {name: self._model.layers.index(name) for name in dict.fromkeys(self._model.layers)}
        found: dict[tuple[int, WeightOwner], set[int]] = {}
        for index, stage in enumerate(self._pipelines.stages):
            for span in stage.blocks:
                for operator, weight in _weights(self._model, span.block):
                    if weight.tied_to is None:
                        named = WeightOwner(span.block, operator.name, weight.name)
                        layers = range(span.first, span.first + span.count)
                    else:
                        named = self._model.owner(weight.tied_to)
                        layers = range(owner_layer[named.block], owner_layer[named.block] + 1)
                    for layer in layers:
                        found.setdefault((layer, named), set()).add(index)
        return {key: tuple(sorted(stages)) for key, stages in found.items()}

    def held(self, weight: WeightOwner, stages: tuple[int, ...], *, sharded_from: int) -> Held:
        """Pieces of a weight on the devices of stages; split over dp x cp from that ZeRO stage on."""
        pieces = [self._pieces_of(weight, index, sharded_from) for index in stages]
        devices = [self._devices_of(index) for index in stages]
        return Held(pieces[0], np.concatenate(devices), np.concatenate([each.of_rank for each in pieces]))

    def _pieces_of(self, named: WeightOwner, index: int, sharded_from: int) -> Pieces:
        stage = self._pipelines.stages[index]
        key = (named, stage.axes, stage.zero_stage >= sharded_from, stage.shard_ranks, stage.shardings)
        if key not in self._pieces:
            operator = self._model.block(named.block).operator(named.operator)
            weight = next(each for each in operator.weights if each.name == named.weight)
            listed = stage.shardings or self._pipelines.shardings
            strategies = {(each.block, each.operator): each.strategy for each in listed}
            strategy = strategies.get((named.block, named.operator), REPLICATE)
            self._pieces[key] = stored_pieces(
                operator,
                weight,
                self._model.dims,
                strategy=Strategy.named(strategy),
                axes=stage.axes,
                is_state_sharded=stage.zero_stage >= sharded_from,
                shard_ranks=stage.shard_ranks,
            )
        return self._pieces[key]

    def _devices_of(self, index: int) -> IntArray:
        ranges = self._pipelines.stages[index].devices
        return np.concatenate([self._device_of_rank[each.first : each.first + each.count] for each in ranges])


def _places_of_ranks(answered: AnsweredRequest) -> IntArray:
    """The place of each of the plan's ranks among the devices of its cluster, counted in the cluster's own order of groups."""
    cluster, placement = answered.request.cluster, placement_of(answered.plan)
    ends = np.cumsum([group.n_devices for group in cluster.groups])
    devices: dict[str, IntArray] = {}
    for group, end in zip(cluster.groups, ends, strict=True):
        by_node = np.arange(end - group.n_devices, end).reshape(group.nodes, -1)
        idle = placement.idle_devices.get(group.name, 0)
        # Ranks are on the first devices of each node.
        devices[group.name] = by_node[:, : by_node.shape[1] - idle].ravel()
    return np.concatenate([devices[name] for name in placement.group_order or tuple(devices)])


def _stored_weights(before: _Layout, after: _Layout) -> Counter[tuple[WeightOwner, tuple[int, ...], tuple[int, ...]]]:
    """Weights by the stages that hold them before and after, and of how many layers that is true."""
    old, new = before.stages_of(), after.stages_of()
    return Counter((named, old[layer, named], stages) for (layer, named), stages in new.items())


def _weights(model: ModelGraph, block: str) -> list[tuple[Operator, Weight]]:
    return [(operator, weight) for operator in model.block(block).operators for weight in operator.weights]


def _devices(old: Cluster, new: Cluster, device_of_old_rank: Sequence[int | None] | None) -> IntArray:
    """The device of each old rank as its number in the new cluster, LOST where it is gone."""
    if device_of_old_rank is None:
        ranks = np.arange(old.n_devices, dtype=np.int64)
        return np.where(ranks < new.n_devices, ranks, LOST)
    named = [rank for rank in device_of_old_rank if rank is not None]
    if len(device_of_old_rank) != old.n_devices or len(set(named)) != len(named) or not set(named) <= set(range(new.n_devices)):
        raise PlanFileError(
            "the devices of old ranks must be different ranks of the new cluster, one for each old device",
            given=f"{len(device_of_old_rank)} devices",
            allowed=f"{old.n_devices} devices, ranks 0 to {new.n_devices - 1}",
        )
    return np.array([LOST if rank is None else rank for rank in device_of_old_rank], np.int64)


def _nodes(cluster: Cluster) -> IntArray:
    """The number of each device's node."""
    per_node = [group.node.devices_per_node for group in cluster.groups for _ in range(group.nodes)]
    return np.repeat(np.arange(len(per_node)), per_node)


def _workload_of_both(old: AnsweredRequest, new: AnsweredRequest) -> TrainingWorkload:
    """Return the new plan's workload; raises PlanFileError unless both plans keep the same state."""
    for name, answered in (("old", old), ("new", new)):
        if isinstance(answered.plan.layout, ByGroup):
            raise PlanFileError(
                f"the {name} plan has replicas by node group, whose moves are not counted",
                given="search.batch_shares: by_group",
                allowed="plans with one layout for all replicas",
            )
    before, after = _training_request("old", old), _training_request("new", new)
    if before.workload.adapter is not None or after.workload.adapter is not None:
        raise PlanFileError(
            "moves of adapters are not counted", given="workload.adapter", allowed="plans that train all weights"
        )
    if before.model.layers != after.model.layers or _shapes(before.model) != _shapes(after.model):
        raise PlanFileError("the plans train different models", given=f"{before.model.name} and {after.model.name}")
    kept = {
        "precision": (before.workload.precision, after.workload.precision),
        "optimizer": (optimizer_of(old.plan, before.workload), optimizer_of(new.plan, after.workload)),
    }
    for field, values in kept.items():
        if values[0] is not values[1]:
            raise PlanFileError(
                f"the plans differ in workload.{field}: state of one kind is not state of the other",
                given=f"{values[0].value} and {values[1].value}",
            )
    return after.workload


def _training_request(name: str, answered: AnsweredRequest) -> TrainingRequest:
    trains = isinstance(answered.plan.layout, Uniform | Stagewise)
    if not isinstance(answered.request, TrainingRequest) or not trains:
        raise PlanFileError(
            f"the {name} plan has no training stages", given=answered.plan.kind, allowed="feasible training plans"
        )
    return answered.request


def _shapes(model: ModelGraph) -> dict[tuple[str, str, str], tuple[int, ...]]:
    return {
        (block, operator.name, weight.name): tuple(model.dims[dim] for dim in weight.dims)
        for block in dict.fromkeys(model.layers)
        for operator, weight in _weights(model, block)
    }


def _fabric_s(cluster: Cluster, moved: SwitchTraffic) -> float:
    """Time of the busiest device: what it sends to or receives from its node, whichever is more, at its fabric's rate."""
    busiest_s, first = 0.0, 0
    for group in cluster.groups:
        node, here = group.node, slice(first, first + group.n_devices)
        rate = node.intra.bytes_per_s * collective_calibration(node.device.calibration).link_share
        busiest_s = max(busiest_s, float(moved.from_node[here].max()) / rate, float(moved.to_node[here].max()) / rate)
        first += group.n_devices
    return busiest_s


def _network_s(cluster: Cluster, moved: SwitchTraffic, node_of: IntArray) -> float:
    """Time of the busiest node: what it sends or receives, whichever is more, at the rate of its network cards."""
    rates: list[float] = []
    for group in cluster.groups:
        share = network_calibration(group.node.network).share_of(Collective.SEND_RECV)
        rates += [group.node.inter.bytes_per_s * share / cluster.oversubscription] * group.nodes
    received, sent = (np.bincount(node_of, weights=of_device) for of_device in (moved.from_network, moved.to_network))
    return float((np.maximum(received, sent) / np.array(rates)).max())
