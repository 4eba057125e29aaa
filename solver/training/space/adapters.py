"""Workloads and the launchers that they are planned for: models and formats, adapters beside frozen weights, documents."""

from __future__ import annotations

from dataclasses import fields

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.adapter import BaseFormat
from meshwright.costmodels.model.implementation import TrainedWeights
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import BatchShares, Gradients, Space, StageDegrees
from meshwright.solver.problem.launchers.decoders import unlike
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.token_prediction import mtp_layers_of


def refuse_workload(request: TrainingRequest) -> None:
    """Raise WorkloadError for a model, a number format, adapters, documents or ways to shard operators that the search or its
    launcher is not for."""
    refuse_models(request)
    refuse_adapters(request)
    refuse_documents(request)
    refuse_splits(request)


def refuse_splits(request: TrainingRequest) -> None:
    """Raise WorkloadError for splits of operators and kinds of layers that no launcher and no published planner has, for splits
    of frozen weights, and for constraints, which name blocks, beside kinds of layers."""
    search, stated = request.search, request.workload.implementation
    opened = {"operator_splits": ", ".join(search.operator_splits), "layer_kinds": "" if search.layer_kinds == 1 else "2"}
    given = ", ".join(f"search.{name}: {words}" for name, words in opened.items() if words)
    if not given:
        return
    if search.space is not Space.FREE or search.system is not None:
        raise WorkloadError(
            "no launcher and no published planner shards operators so",
            given=given,
            allowed="with search.space: free, without search.system",
        )
    if search.layer_kinds > 1 and search.constraints:
        raise WorkloadError(
            "constraints name blocks, which kinds of layers divide", given=given, allowed="without search.constraints"
        )
    if search.operator_splits and stated is not None and stated.trained is TrainedWeights.ADAPTERS:
        raise WorkloadError(
            "weights that are not trained are not stored split",
            given=given,
            allowed="of all weights that are trained",
        )


def refuse_models(request: TrainingRequest) -> None:
    """Raise WorkloadError for a model or a number format that the launcher does not train."""
    search = request.search
    rules = TRAINERS.get(search.launcher)
    if search.space is not Space.LAUNCHABLE or rules is None:
        return
    strange = () if rules.layers is None else unlike(request.model, rules.layers)
    if strange and rules.layers is not None:
        raise WorkloadError(
            f"{search.launcher.value} has no layers of this model: its decoders have {rules.layers.said}",
            given="; ".join(strange),
            allowed=", ".join(sorted(launcher.value for launcher, each in TRAINERS.items() if each.layers is None)),
            remedy="set search.launcher to one of those, or search.space: free",
        )
    if (modules := mtp_layers_of(request.model)) and not rules.mtp:
        raise WorkloadError(
            f"{search.launcher.value} trains no layers that predict more tokens",
            given=f"mtp_layers {modules}",
            allowed=", ".join(sorted(launcher.value for launcher, each in TRAINERS.items() if each.mtp)),
            remedy="set search.launcher to one of those, or search.space: free, or leave mtp_layers out",
        )
    if request.workload.precision is DType.FP16 and not rules.fp16:
        raise WorkloadError(f"{search.launcher.value} has no fp16 training", given="fp16", allowed="bf16, fp32")
    if request.workload.precision is DType.FP32 and not rules.fp32:
        raise WorkloadError(f"{search.launcher.value} has no fp32 training", given="fp32", allowed="bf16")
    if not suits_nodes(request.cluster, search):
        few = f"up to {rules.on_one_node} devices for those of one node, and " if rules.on_one_node > 1 else ""
        raise WorkloadError(
            f"{search.launcher.value} takes {few}nodes for equal",
            given=f"{request.cluster.n_devices} devices on {sum(group.nodes for group in request.cluster.groups)} nodes",
            remedy="set search.launcher to another, or a cluster of equal nodes and more devices",
        )


def suits_nodes(cluster: Cluster, search: Search) -> bool:
    """Return True for nodes that suit the search's launcher: where that counts ranks alone, hosts of equally many devices, and
    one host where there are as few as it takes for those of one."""
    rules = TRAINERS.get(search.launcher)
    if search.space is not Space.LAUNCHABLE or rules is None or not rules.equal_nodes:
        return True
    nodes = [group.node for group in cluster.groups]
    if cluster.n_devices <= rules.on_one_node:
        return cluster.n_devices == nodes[0].host_devices
    return len({node.host_devices for node in nodes}) == 1 and all(
        node.devices_per_node % node.host_devices == 0 for node in nodes
    )


# Adapters.


def zero_stages_beside(workload: TrainingWorkload) -> tuple[int, ...]:
    """Return the ZeRO stages that are planned: all but those that shard what frozen weights lack.

    Weights of four bits are shards like others (bitsandbytes from 0.43, bnb_4bit_quant_storage in the working format); those of
    eight stay whole.
    """
    if workload.adapter is None:
        return (0, 1, 2, 3)
    return (0,) if workload.adapter.base_format is BaseFormat.INT8 else (0, 3)


def refuse_adapters(request: TrainingRequest) -> None:
    """Raise WorkloadError for a search that does not go with the workload's adapters."""
    if request.workload.adapter is None:
        return
    search = request.search
    able = sorted(launcher.value for launcher, rules in TRAINERS.items() if rules.adapters)
    rules = TRAINERS.get(search.launcher)
    if search.space is not Space.LAUNCHABLE or search.system is not None or rules is None or not rules.adapters:
        given = {"space": search.space.value, "launcher": search.launcher.value}
        raise WorkloadError(
            "adapters are planned for launchers that train them",
            given=given,
            allowed=f"space: launchable, and launcher: {' or '.join(able)}",
        )
    stages = zero_stages_beside(request.workload)
    if search.zero_stages and set(search.zero_stages).isdisjoint(stages):
        raise WorkloadError(
            "no such ZeRO stage is planned beside these adapters",
            given=list(search.zero_stages),
            allowed=", ".join(str(stage) for stage in stages),
        )
    shares = [each.name for each in fields(search) if each.name.startswith("offload_") and any(getattr(search, each.name))]
    if shares or Gradients.RELEASED in search.gradients:
        raise WorkloadError(
            "beside adapters all state stays on the device until the step ends",
            given=shares or "gradients: released",
            allowed="no offload, and gradients: [kept]",
        )


# Sequences that are packed of documents: the launchers and the searches that they are planned for.


def keeps_documents_together(request: TrainingRequest, *, ring: int) -> bool:
    """Return True if ranks that share a sequence share the work of its documents evenly.

    Ranks that exchange tokens for heads have every document whole. Chunks of a ring are of equal length, but not of equal work
    under masks of documents.
    """
    return ring == 1 or request.workload.documents is None


def refuse_documents(request: TrainingRequest) -> None:
    """Raise WorkloadError for a search that does not go with the workload's lengths of documents."""
    if request.workload.documents is None:
        return
    search = request.search
    rules = TRAINERS.get(search.launcher)
    if search.space is Space.LAUNCHABLE and (rules is None or not rules.masks_documents):
        able = sorted(launcher.value for launcher, each in TRAINERS.items() if each.masks_documents)
        raise WorkloadError(
            "packed documents are planned for launchers that mask them",
            given=f"launcher: {search.launcher.value}",
            allowed=f"launcher: {' or '.join(able)}, or space: free",
        )
    if any(number > 1 for number in search.token_slices):
        raise WorkloadError(
            "token slices cut documents", given=list(search.token_slices), allowed="without search.token_slices"
        )
    if search.stage_degrees is not StageDegrees.SAME or search.batch_shares is not BatchShares.EVEN:
        raise WorkloadError(
            "packed documents are not searched beside stages or replicas that differ",
            given={"stage_degrees": search.stage_degrees.value, "batch_shares": search.batch_shares.value},
            allowed="search.stage_degrees: same, search.batch_shares: even",
        )
