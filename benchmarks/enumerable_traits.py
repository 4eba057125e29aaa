"""The traits of random requests, and the special parts of their best plans."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import BatchShares, Gradients, GroupOrder, StageDegrees, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import TrainingRequest


def opened(request: TrainingRequest) -> Iterator[str]:
    """Yield the traits of a request that most requests lack."""
    search, cluster = request.search, request.cluster
    shares = (search.offload_weights, search.offload_gradients)
    open_choices = {
        "mixed devices": len({group.node.device.name for group in cluster.groups}) > 1,
        "three kinds of devices": len({group.node.device.name for group in cluster.groups}) > 2,
        "unequal nodes": len({group.node for group in cluster.groups}) > 1,
        "an oversubscribed spine": cluster.oversubscription > 1.0,
        "a model that branches": not request.model.is_chain,
        "orders of node groups": search.group_order is GroupOrder.ANY,
        "idle devices": bool(search.idle_groups),
        "orders of ranks": len(search.rank_order) > 1,
        "another risk than 1/2": search.risk != 0.5,
        "some layers of pipelines recomputed": bool(search.recompute_layers),
        "modules recomputed": bool(search.recompute_modules),
        "stages that differ": search.stage_degrees is StageDegrees.ANY,
        "replicas by node group": search.batch_shares is BatchShares.BY_GROUP,
        "optimizers": len(search.optimizers) > 1,
        "released gradients": bool(search.gradients),
        "weights or gradients on hosts": any(map(any, shares)),
        "drives": bool(search.offload_optimizer_to or search.offload_weights_to),
        "token slices": any(count > 1 for count in search.token_slices),
        "chunked products": not search.tp_overlap or TpOverlap.CHUNKED in search.tp_overlap,
    }
    yield from (f"open: {name}" for name, is_open in open_choices.items() if is_open)


def chosen(plan: Plan) -> Iterator[str]:
    """Yield the special parts of a request's best plan."""
    if record_of(plan).axes is None:
        return
    axes, stages = record_of(plan).axes, record_of(plan).stages
    degrees = [degree for stage in stages for degree in (stage.axes.dp, stage.axes.tp, axes.pp, stage.axes.cp, stage.axes.ep)]
    special = {
        "a degree that is no power of two": any(degree & (degree - 1) for degree in degrees),
        "cp": axes.cp > 1,
        "exchanges of heads": axes.ulysses > 1,
        "ep": axes.ep > 1,
        "tp": axes.tp > 1,
        "whole experts beside tp": axes.etp is not None,
        "chunked products": record_of(plan).tp_overlap is TpOverlap.CHUNKED,
        "another order of node groups": bool(record_of(plan).group_order),
        "idle devices": bool(record_of(plan).idle_devices),
        "stages that differ": any(stage.shardings for stage in stages),
        "replicas by node group": record_of(plan).shares is not None,
        "another order of ranks": record_of(plan).rank_order is RankOrder.DP_OUTERMOST,
        "named modules recomputed": any(stage.recompute_modules is not None for stage in stages),
        "some layers recomputed": any(stage.recompute_layers is not None for stage in stages),
        "stages that are no runs of layers": any(_leaves_out_layers(plan)),
        "ZeRO within groups": any(stage.shard_ranks for stage in stages),
        "optimizer states on the host": any(stage.offload.optimizer for stage in stages),
        "activations on the host": any(stage.offload.activations for stage in stages),
        "weights on the host or on drives": any(stage.offload.weights for stage in stages),
        "gradients on the host": any(stage.offload.gradients for stage in stages),
        "state on drives": any(stage.offload.on_drives for stage in stages),
        "gradients released": any(stage.gradients is Gradients.RELEASED for stage in stages),
        "another optimizer": record_of(plan).optimizer is not None,
    }
    yield from (f"best: {name}" for name, is_so in special.items() if is_so)


def _leaves_out_layers(plan: Plan) -> Iterator[bool]:
    """Of each stage of one part whether layers between its first and its last are on another."""
    for stage in record_of(plan).stages:
        runs = [(span.first, span.first + span.count) for span in stage.blocks]
        yield record_of(plan).schedule in ("1f1b", "gpipe") and any(end != first for (_, end), (first, _) in pairwise(runs))
