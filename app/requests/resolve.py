"""From a request document to a ``PlanRequest``: references looked up, every fault at the field it belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from meshwright.app.base.errors import DocumentError, FieldError, faults_at, field_error, join_path
from meshwright.app.base.figures import BANDWIDTH, COMPUTE, DURATION, MILLISECONDS, MONEY, RATE, SIZE, Quantity, read_quantity
from meshwright.app.base.records import read_record, to_document
from meshwright.app.models.stated_parameters import StatedParameters
from meshwright.app.requests.calibrations import NoStoredCalibrations, StoredCalibrations, read_calibrations, with_calibrations
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.document import REGISTERED, ClusterSource, GroupSource, ModelSource, RequestDocument
from meshwright.app.requests.learned import with_memory_of_runs, with_runs
from meshwright.app.requests.limits import Entry, check_cluster, check_request, check_values
from meshwright.app.requests.models import NO_REGISTRY, ReadModel, Registry, read_source
from meshwright.app.requests.workloads import serving_workload, training_workload
from meshwright.costmodels.calibration.calibration import Calibration, calibration_key, is_measured
from meshwright.costmodels.calibration.kernel_file import (
    borrowed_name,
    differs_from_its_calibration,
    kernel_calibration,
    key_of_device,
    nearest_measured,
)
from meshwright.costmodels.calibration.networks import fabric_key, is_fabric_key, measures, network_calibration
from meshwright.costmodels.cluster.cluster import (
    NEAREST,
    TIMED_ALONE,
    UNSTATED_NETWORK,
    UNTOLD_RATES,
    Cluster,
    NodeGroup,
    NodeType,
    part_of_node,
)
from meshwright.costmodels.errors import ClusterError, InvalidInputError, ModelError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.adapter import AdapterKind
from meshwright.costmodels.network.token_dispatch import DispatchFormat
from meshwright.costmodels.queueing.router import Router
from meshwright.solver.problem.choice import SERVING, TRAINING, Form
from meshwright.solver.problem.declared.constraints import require_satisfiable
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import REQUEST_SCHEMA, PlanRequest, TrainingWorkload, Workload, plan_request
from meshwright.solver.problem.search import require_choices_of
from meshwright.solver.training.space.implementation import as_implemented

NO_STORE = NoStoredCalibrations()


class Files(Protocol):
    """The reader of a file that a request names."""

    def read(self, path: str) -> object:
        """The parsed document at a path; raises InvalidInputError."""
        ...

    def read_config(self, name: str) -> tuple[object, str]:
        """The parsed Hugging Face config of a path or Hub id, and the model's name; raises InvalidInputError."""
        ...

    def has(self, name: str) -> bool:
        """Return True if there is a file or folder of that name."""
        ...

    def stated_parameters(self, name: str, config: Mapping[str, Any]) -> StatedParameters | None:
        """What the files beside a config state of the model's parameters, None where nothing does."""
        ...

    def read_text(self, path: str) -> str:
        """The text of the file at a path; raises InvalidInputError."""
        ...

    def own_nodes(self) -> Mapping[str, NodeType]:
        """A user's own node types under their names and their devices'; raises InvalidInputError for a file of none."""
        ...


class NoFiles:
    """Requests that come over the network name no files."""

    def read(self, path: str) -> object:
        """Always refuses."""
        raise ModelError(
            "files can't be named in a request to the service",
            given=path,
            allowed="'catalog', or the content inline: 'config' or 'graph'",
            remedy="paste the file's content into 'config' or 'graph'",
        )

    def read_config(self, name: str) -> tuple[object, str]:
        """Always refuses."""
        return self.read(name), name

    def has(self, name: str) -> bool:
        """There are none."""
        return False

    def stated_parameters(self, name: str, config: Mapping[str, Any]) -> StatedParameters | None:
        """Return None: no file is beside another."""
        return None

    def read_text(self, path: str) -> str:
        """Always refuses."""
        raise WorkloadError(
            "files can't be named in a request to the service",
            given=path,
            allowed="the content inline: 'times_s', 'prompt_tokens' and 'output_tokens' of a trace, 'empirical' lengths",
        )

    def own_nodes(self) -> Mapping[str, NodeType]:
        """Return none: hardware of a user's own lies on the user's machine."""
        return {}


def resolve_request(
    document: object,
    *,
    files: Files,
    registry: Registry = NO_REGISTRY,
    stored: StoredCalibrations = NO_STORE,
    entry: Entry = Entry.NEW,
) -> PlanRequest:
    """The request that a parsed document describes; raises DocumentError, its faults at their dotted paths.

    Names with hidden characters are refused in a new document, and read in a stored one.
    ``stored`` finds the calibrations that it names; a registered cluster's other devices have those that ``registry`` knows.
    """
    check_values(document, entry)
    source = read_record(RequestDocument, _with_engine(without_units(document)), what="request")
    with faults_at("model"):
        read = read_source(source.model, files, registry, entry)
    with faults_at("cluster"):
        cluster = _cluster(source.cluster, registry, entry, files)
        check_cluster(cluster)
    calibrations = read_calibrations(source.calibrations, files, stored, entry)
    is_registered = isinstance(source.cluster, ClusterSource) and source.cluster.source() == REGISTERED
    if is_registered:
        assert isinstance(source.cluster, ClusterSource)
        calibrations = _with_newest(cluster, str(source.cluster.name), calibrations, registry)
    calibrations = with_runs(source, cluster, calibrations, registry, is_registered=is_registered)
    cluster = with_calibrations(cluster, calibrations)
    with faults_at("cluster"):
        _check_calibrations(cluster)
    with faults_at("workload"):
        kind = WORKLOADS[source.workload.kind]
        model, workload = kind.read(source, read, files, cluster, calibrations)
    if entry is Entry.NEW:
        with faults_at("search"):
            require_choices_of(source.search, kind.forms)
    with faults_at("search"):
        require_satisfiable(source.search.constraints, model, pp=source.search.pp)
    with faults_at("slo"):
        request = plan_request(
            model,
            cluster,
            workload,
            slo=source.slo,
            objective=source.objective,
            search=source.search,
            calibrations=calibrations,
        )
    check_request(request)
    return request


def _with_engine(document: object) -> object:
    """The document with the engine that its launcher starts, where it names a launcher that serves and no engine."""
    search = document.get("search") if isinstance(document, dict) else None
    if not isinstance(search, dict) or "engine" in search:
        return document
    started = next((server.engine for launcher, server in SERVERS.items() if launcher == search.get("launcher")), None)
    return document if started is None else {**document, "search": {**search, "engine": started.value}}  # type: ignore[dict-item]


_SAY_NOTHING: tuple[tuple[str, str, object], ...] = (
    *((part, name, None) for part, name in (("model", "hyperparameters"), ("search", "memory_share"))),
    *(("workload", name, None) for name in ("speculation", "implementation", "adapter", "lengths", "run_tokens")),
    ("search", "layer_kinds", 1),
    *(("search", name, []) for name in ("cp_keys", "expert_overlap", "recompute_modules", "operator_splits", "constraints")),
    ("workload", "dispatch_format", DispatchFormat.WORKING),
    ("workload", "router", Router.RANDOM),
    ("workload", "mtp_layers", 0),
    ("slo", "max_cost_per_million_tokens", None),
)
"""Fields that came after requests were stored, with the value that says nothing: it is left out, so that these keep their
digests."""


def request_document(request: PlanRequest) -> dict[str, Any]:
    """The request as a document without references: reading it again gives an equal request."""
    whole = to_document(type(request), request)
    given = whole.pop("calibrations")
    for part, name, nothing in _SAY_NOTHING:
        if name in whole[part] and whole[part][name] == nothing:
            del whole[part][name]
    arrivals = whole["workload"].get("arrivals", {})
    if arrivals.get("requests_per_client", True) is None:
        # Requests from before runs that count from their beginning keep theirs.
        del arrivals["requests_per_client"]
    if whole["workload"].get("adapter", {}).get("kind") == AdapterKind.LORA:
        # Those from before DoRA, too.
        del whole["workload"]["adapter"]["kind"]
    if whole["model"].get("hyperparameters", {}).get("positions", True) is None:
        del whole["model"]["hyperparameters"]["positions"]
    for group in whole["cluster"]["groups"]:
        if group["node"].get("devices_per_host", True) is None:
            # Requests from before hosts of racks keep theirs.
            del group["node"]["devices_per_host"]
        if group["node"].get("network") == UNSTATED_NETWORK:
            # Requests from before kinds of networks keep theirs.
            del group["node"]["network"]
    if given:
        whole["calibrations"] = [calibration["document"] for calibration in given]
    return {
        "schema": REQUEST_SCHEMA,
        **whole,
        "model": {"graph": whole["model"]},
    }


def read_model(document: object, *, files: Files, name: str | None = None, entry: Entry = Entry.NEW) -> ModelGraph:
    """The model of a document like a request's ``model``, under another name if one is given; raises DocumentError."""
    check_values(document, entry)
    source = read_record(ModelSource, document, what="model")
    graph = read_source(source, files, NO_REGISTRY, entry).graph
    return graph if name is None else replace(graph, name=name)


def read_cluster(document: object, entry: Entry = Entry.NEW) -> Cluster:
    """The cluster of a document like a request's ``cluster``, words among them; raises DocumentError, ClusterError."""
    check_values(document, entry)
    source = document if isinstance(document, str) else read_record(ClusterSource, document, what="cluster")
    cluster = _cluster(source, NO_REGISTRY, entry, NoFiles())
    check_cluster(cluster)
    return cluster


def _check_trace(workload: TrainingWorkload, seq_len: int | None) -> None:
    """A trace has the sizes it was made with: its batch follows the workload, its sequence doesn't."""
    if seq_len is not None and workload.seq_len != seq_len:
        raise WorkloadError(
            "the model was traced with another sequence length",
            given=workload.seq_len,
            allowed=str(seq_len),
            remedy="trace the model with the sequence length that you train with",
        )


def _read_training(
    source: RequestDocument, read: ReadModel, files: Files, cluster: Cluster, calibrations: Sequence[Calibration]
) -> tuple[ModelGraph, Workload]:
    given: Any = source.workload
    workload = training_workload(given, files)
    _check_trace(workload, read.seq_len)
    with faults_at("implementation"):
        workload = with_memory_of_runs(workload, source.search, calibrations)
        return as_implemented(read.graph, workload, source.search)


def _read_serving(
    source: RequestDocument, read: ReadModel, files: Files, cluster: Cluster, calibrations: Sequence[Calibration]
) -> tuple[ModelGraph, Workload]:
    given: Any = source.workload
    devices = [group.node.device for group in cluster.groups]
    return read.graph, serving_workload(given, files, read.config, devices)


@dataclass(frozen=True, slots=True)
class ReadKind:
    """How the workload of a kind is read, with the model as it runs, and the forms whose choices its search may make."""

    read: Callable[[RequestDocument, ReadModel, Files, Cluster, Sequence[Calibration]], tuple[ModelGraph, Workload]]
    forms: frozenset[Form]


WORKLOADS: Mapping[str, ReadKind] = MappingProxyType(
    {"training": ReadKind(_read_training, TRAINING), "serving": ReadKind(_read_serving, SERVING)}
)
"""Kinds of workloads by their names."""


def _cluster(source: ClusterSource | str, registry: Registry, entry: Entry, files: Files) -> Cluster:
    if isinstance(source, str):
        words = cluster_of_words(source, files.own_nodes())
        return replace(words, groups=tuple(_calibrated(group, entry) for group in words.groups))
    kind = source.source()
    if kind == REGISTERED:
        with faults_at(kind):
            return registry.cluster(str(source.name))
    if kind == "catalog":
        with faults_at("catalog"):
            name = str(source.catalog)
            node = files.own_nodes().get(name) or node_type(name)
        groups = [NodeGroup(name=node.name, node=node, nodes=source.nodes or 1)]
    else:
        groups = [_group(group, index) for index, group in enumerate(source.groups or ())]
    groups = [_calibrated(group, entry) for group in groups]
    if source.nvme is not None:
        groups = [replace(group, node=replace(group.node, nvme=source.nvme)) for group in groups]
    return Cluster(
        groups=tuple(groups),
        oversubscription=source.oversubscription,
        memory_reserve=source.memory_reserve,
        nodes_per_leaf=source.nodes_per_leaf,
    )


def _with_newest(cluster: Cluster, name: str, given: Sequence[Calibration], registry: Registry) -> tuple[Calibration, ...]:
    """Return the given calibrations, and the newest calibration of each other device of the cluster that is registered under a
    name, and of its network if that was measured on such nodes, in order of key."""
    by_key = {calibration_key(calibration.name): calibration for calibration in given}
    for key in {calibration_key(group.node.device.calibration) for group in cluster.groups} - by_key.keys():
        newest = registry.newest_calibration(key)
        if newest is not None:
            by_key[key] = newest
    if not any(is_fabric_key(key) for key in by_key):
        fabric = registry.newest_calibration(fabric_key(name))
        if fabric is not None and measures(fabric.document, cluster):
            by_key[calibration_key(fabric.name)] = fabric
    return tuple(by_key[key] for key in sorted(by_key))


def _group(source: GroupSource, index: int) -> NodeGroup:
    with faults_at(f"groups.{index}.node"):
        node = source.node if isinstance(source.node, NodeType) else node_type(source.node)
    if source.lost_devices >= node.devices_per_node:
        with faults_at(f"groups.{index}.lost_devices"):
            raise ClusterError(
                "these nodes have no device left",
                given=source.lost_devices,
                allowed=f"at most {node.devices_per_node - 1}",
                remedy="leave the group out",
            )
    left = part_of_node(node, node.devices_per_node - source.lost_devices)
    return NodeGroup(name=source.name, node=left, nodes=source.nodes)


def _check_calibrations(cluster: Cluster) -> None:
    """Refuse devices and networks that name a calibration which nobody ships; raises ClusterError."""
    for name in sorted({group.node.device.calibration for group in cluster.groups}):
        if not is_measured(name):
            kernel_calibration(name)
    for name in sorted({group.node.network for group in cluster.groups}):
        if not is_measured(name):
            network_calibration(name)


def _calibrated(group: NodeGroup, entry: Entry) -> NodeGroup:
    """The group whose device names a calibration that says where it is from: a device without one borrows the nearest measured
    device's, and one whose data sheet is another's than that of its calibration borrows it too. Stored requests stay as they
    are, under their digests."""
    device = group.node.device
    if device.calibration == NEAREST:
        name = borrowed_name(key_of_device(device.name), nearest_measured(device))
        if device.sustained == TIMED_ALONE:
            device = replace(device, sustained=UNTOLD_RATES)
    elif entry is Entry.NEW and differs_from_its_calibration(device):
        name = borrowed_name(device.calibration, device.calibration)
    else:
        return group
    return replace(group, node=replace(group.node, device=replace(device, calibration=name)))


# Numbers that a request gives as text with a unit: ``p95_ttft_ms: 1s``, ``memory_bytes: 24GiB``, ``bytes_per_s: 400Gb/s``.
#
# The end of a field's name says what it holds, so every field that ends so takes text.

SECTIONS = ("cluster", "workload", "slo", "search")
"""Fields of a request whose numbers may have units; models are written by programs."""

_ENDINGS = (
    ("bytes_per_s", BANDWIDTH),
    ("_per_s", RATE),
    ("_bytes", SIZE),
    ("_per_million_tokens", MONEY),
    ("_ms", MILLISECONDS),
    ("_s", DURATION),
)
TEXTS = "sources"
"""The field of devices and nodes that holds texts by the names of other fields."""

_FORMATS_OF_FLOPS = "peak_flops"
_BARE_NUMBER = re.compile(r"[\s0-9.eE+_-]*")


def quantity_of_field(name: str) -> Quantity | None:
    """Return the kind of quantity that a field of this name holds; None where it is no quantity with a unit."""
    return next((kind for ending, kind in _ENDINGS if name.endswith(ending)), None)


def without_units(document: object) -> object:
    """Return the request with its texts of numbers and units as numbers; raises DocumentError with every fault.

    A number in quotes without a unit stays as it is, to be refused by its field.
    """
    if not isinstance(document, dict):
        return document
    faults: list[FieldError] = []
    changed = {name: _value(document[name], name, None, faults) for name in SECTIONS if name in document}
    if faults:
        raise DocumentError("this request can't be used", tuple(faults))
    return document | changed


def _value(value: Any, path: str, kind: Quantity | None, faults: list[FieldError]) -> Any:
    if isinstance(value, dict):
        of_formats = COMPUTE if path.endswith(_FORMATS_OF_FLOPS) else None
        return {
            name: item
            if name == TEXTS
            else _value(item, join_path(path, str(name)), of_formats or quantity_of_field(str(name)), faults)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_value(item, f"{path}.{index}", None, faults) for index, item in enumerate(value)]
    if not isinstance(value, str) or kind is None or _BARE_NUMBER.fullmatch(value):
        return value
    try:
        number = read_quantity(value, kind, what="the value")
    except InvalidInputError as error:
        faults.append(field_error(error, path))
        return value
    return int(number) if number.is_integer() else number
