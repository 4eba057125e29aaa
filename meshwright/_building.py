"""Builders of what is asked. Each makes a part of a request document and has it read as those of files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from meshwright._asked import Cluster, Model, Node, Request, Workload
from meshwright._documents import FileName, absolute, plain_object
from meshwright.app.base.errors import at_field
from meshwright.app.base.records import read_record, to_document
from meshwright.app.models import catalog
from meshwright.app.requests.document import ServingSource
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.files import read_request as read_request_file
from meshwright.app.requests.limits import check_values
from meshwright.app.requests.resolve import read_cluster, read_model, resolve_request
from meshwright.app.requests.workloads import serving_workload
from meshwright.costmodels import hardware
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import InvalidInputError, ModelError
from meshwright.solver.problem.request import REQUEST_SCHEMA, TrainingWorkload

CONFIG_FILE = "config.json"
"""The file of a Hugging Face model folder that describes the model."""


def model_names() -> tuple[str, ...]:
    """Return the names of all models of the catalogue."""
    return catalog.model_names()


def node_names() -> tuple[str, ...]:
    """Return the names of all node types of the catalogue."""
    return tuple(node_type.name for node_type in hardware.node_types())


def model(source: str | FileName | Mapping[str, Any], *, name: str | None = None) -> Model:
    """Return the model of a catalogue name, of a Hugging Face ``config.json``, or of a model graph.

    A config or graph is given as a mapping, as a path, or as the folder that holds ``config.json``. A text is a path where it
    ends in ".json" or has a slash, else a catalogue name. Raises ModelError or DocumentError.
    """
    document = _model_source(source) | ({} if name is None else {"name": name})
    return _model_of(document)


def transformer(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocabulary: int,
    kv_heads: int | None = None,
    experts: int | None = None,
    experts_per_token: int = 2,
    tied_embeddings: bool = False,
) -> Model:
    """Return a decoder of numbers, built as Llama is, or as Mixtral is where it has experts.

    layers, hidden, heads      layers, width of the residual stream, and query heads
    ffn, vocabulary            width of the feed-forward layers (of each expert), and rows of the embedding
    kv_heads                   heads of keys and values, as many as query heads unless given
    experts, experts_per_token routed experts of a layer, and how many of them a token goes to
    tied_embeddings            whether the head has the embedding's weights

    Raises ModelError or DocumentError.
    """
    config: dict[str, Any] = {
        "model_type": "llama" if experts is None else "mixtral",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied_embeddings,
    }
    if experts is not None:
        config |= {"num_local_experts": experts, "num_experts_per_tok": experts_per_token, "sliding_window": None}
    return _model_of({"config": config, "name": name})


def node(like: str, *, name: str, **figures: Any) -> Node:
    """Return a node type as another of the catalogue, but for the figures that are given.

    ``figures`` are fields of a node type in the request format, ``device`` and links as mappings of the fields that differ:
    ``node("dgx-h100", name="half", devices_per_node=4, device={"memory_bytes": 94 * 2**30})``. Raises ClusterError or
    DocumentError.
    """
    whole = to_document(NodeType, hardware.node_type(like)) | {"name": name, "sources": {}}
    given = plain_object(figures, at="node")
    check_values(given)
    if "device" in given:
        # Devices of one name are taken for equal.
        whole["device"] |= {"name": f"{name}-device", "sources": {}}
    for field, value in given.items():
        inner = whole.get(field)
        whole[field] = inner | value if isinstance(inner, dict) and isinstance(value, dict) else value
    read = read_record(NodeType, whole, what="node type")
    return Node(read.name, read.devices_per_node, whole)


def cluster(node: str | Node, *, nodes: int = 1, **network: Any) -> Cluster:
    """Return a cluster of equal nodes, of a catalogue name or of ``node``.

    ``network`` are other fields of a request's ``cluster``: ``oversubscription``, ``nodes_per_leaf``, ``memory_reserve``,
    ``nvme``. Raises ClusterError or DocumentError.
    """
    if isinstance(node, Node):
        return mixed_cluster({node.name: (node, nodes)}, **network)
    return _cluster_of({"catalog": node, "nodes": nodes} | network)


def mixed_cluster(groups: Mapping[str, tuple[str | Node, int]], **network: Any) -> Cluster:
    """Return a cluster of node groups in rank order: {"new": ("dgx-h100", 4), "old": ("dgx-a100", 8)}.

    ``network`` is as in ``cluster``. Raises ClusterError or DocumentError.
    """
    listed = []
    for name, group in groups.items():
        if not isinstance(group, tuple | list) or len(group) != 2:
            raise InvalidInputError(f"node group {name!r} can't be read", given=group, allowed="(node, number of nodes)")
        each, nodes = group
        listed.append({"name": name, "node": each.source if isinstance(each, Node) else each, "nodes": nodes})
    return _cluster_of({"groups": listed} | network)


def training(*, global_batch: int, seq_len: int, precision: str = "bf16", optimizer: str = "adamw", **fields: Any) -> Workload:
    """Return the workload of training on ``global_batch`` sequences of ``seq_len`` tokens a step.

    ``fields`` are other fields of a training workload in the request format. Raises DocumentError.
    """
    own = {"global_batch": global_batch, "seq_len": seq_len, "precision": precision, "optimizer": optimizer}
    document = _checked({"kind": "training"} | own | fields, at="workload")
    read_record(TrainingWorkload, document, what="training workload")
    return Workload("training", document)


def serving(
    *,
    requests_per_s: float | None = None,
    clients: int | None = None,
    arrivals: Mapping[str, Any] | None = None,
    prompt_tokens: int | Mapping[str, Any] | None = None,
    output_tokens: int | Mapping[str, Any] | None = None,
    precision: str = "bf16",
    **fields: Any,
) -> Workload:
    """Return the workload of serving requests that arrive so: exactly one of the three ways is given.

    requests_per_s   as a Poisson process
    clients          that send their next request when the last is answered
    arrivals         as in the request format: in bursts, or from a trace
    prompt_tokens, output_tokens   of every request, or a distribution as in the request format; a trace has its own
    fields           other fields of a serving workload in the request format

    Raises InvalidInputError or DocumentError.
    """
    ways = {
        "requests_per_s": None if requests_per_s is None else {"process": "poisson", "requests_per_s": requests_per_s},
        "clients": None if clients is None else {"process": "closed", "concurrency": clients},
        "arrivals": arrivals,
    }
    given = [name for name, way in ways.items() if way is not None]
    if len(given) != 1:
        raise InvalidInputError("arrivals need exactly one account", given=given, allowed=", ".join(ways))
    own = {"arrivals": ways[given[0]], "precision": precision}
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    own |= {name: length if isinstance(length, Mapping) else {"fixed": length} for name, length in lengths.items() if length}
    document = _checked({"kind": "serving"} | own | fields, at="workload")
    serving_workload(read_record(ServingSource, document, what="serving workload"), FilesBeside(Path.cwd()))
    return Workload("serving", document)


def request(
    model: Model | str | FileName | Mapping[str, Any],
    cluster: Cluster | str | Node,
    workload: Workload,
    *,
    slo: Mapping[str, Any] | None = None,
    objective: str = "throughput",
    search: Mapping[str, Any] | None = None,
    calibrations: Iterable[Mapping[str, Any] | FileName] = (),
) -> Request:
    """Return the request of a model on a cluster for a workload.

    model, cluster   as the builders make them, or what ``model`` and ``cluster`` take
    slo              targets: ``{"p95_ttft_ms": 500}``
    objective        "throughput", "step_time", "devices", "cost", "energy" or "goodput"
    search           restrictions and limits of the search: ``{"tp": [4, 8], "time_limit_s": 30}``
    calibrations     documents, or paths of them, to use instead of the shipped ones of their devices

    The request format (docs/request-format.md) says what each may hold. Raises InvalidInputError, whose ``fields`` name every
    fault if it is a DocumentError.
    """
    if not isinstance(workload, Workload):
        raise InvalidInputError("a workload is what 'training' and 'serving' return", given=type(workload).__name__)
    document = {
        "schema": REQUEST_SCHEMA,
        "model": (model if isinstance(model, Model) else model_of(model)).source,
        "cluster": (cluster if isinstance(cluster, Cluster) else cluster_of(cluster)).source,
        "workload": workload.source,
        "slo": {} if slo is None else slo,
        "objective": objective,
        "search": {} if search is None else search,
        "calibrations": [each if isinstance(each, Mapping) else absolute(each) for each in calibrations],
    }
    return read_request(document)


model_of, cluster_of = model, cluster
"""The builders under other names, for functions that take a model and a cluster."""


def read_request(source: FileName | Mapping[str, Any]) -> Request:
    """Return the request in a file (YAML or JSON), or of a request document.

    Paths in a file are relative to it, those in a document to the working directory. Raises InvalidInputError.
    """
    if isinstance(source, Mapping):
        document = plain_object(source, at="request")
        return Request(resolve_request(document, files=FilesBeside(Path.cwd())))
    return Request(read_request_file(absolute(source)))


def _model_source(source: object) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return {"graph" if "schema" in source else "config": plain_object(source, at="model")}
    if isinstance(source, str) and not source.endswith(".json") and "/" not in source:
        return {"catalog": source}
    if not isinstance(source, str | PathLike):
        raise ModelError("a model is a name, a path or a mapping", given=type(source).__name__)
    path = Path(absolute(source))
    if path.is_dir():
        path = path / CONFIG_FILE
    document = FilesBeside(path.parent).read(path.name)
    is_graph = isinstance(document, dict) and "schema" in document
    return {"graph" if is_graph else "huggingface": str(path)}


def _model_of(document: dict[str, Any]) -> Model:
    source = plain_object(document, at="model")
    graph = read_model(source, files=FilesBeside(Path.cwd()))
    return Model(graph.name, graph.parameters(), source)


def _cluster_of(document: dict[str, Any]) -> Cluster:
    source = plain_object(document, at="cluster")
    return Cluster(read_cluster(source).n_devices, source)


def _checked(document: dict[str, Any], *, at: str) -> dict[str, Any]:
    """The document as plain values, none of which is too large."""
    read = plain_object(document, at=at)
    try:
        check_values(read)
    except InvalidInputError as error:
        raise at_field(error, at) from None
    return read
