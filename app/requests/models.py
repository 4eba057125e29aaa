"""Models that a request names: of the catalogue, by a config.json or a graph, registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from meshwright.app.base.errors import faults_at
from meshwright.app.base.records import read_record
from meshwright.app.models.catalog.copies import DECODER_OF, SIZES_OF, Copy, copy_of
from meshwright.app.models.catalog.huggingface_ids import (
    OTHER_HYPERPARAMETERS,
    OTHER_POSITIONS,
    TEXT_DECODERS,
    catalogue_name_of,
    id_as_written,
)
from meshwright.app.models.stated_parameters import StatedParameters
from meshwright.app.requests.document import REGISTERED, ModelSource
from meshwright.app.requests.limits import Entry, check_values
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError, ModelError
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.solver.problem.graph import Hyperparameters, ModelGraph

# Where requests find what is registered under the names that they give.


class Registry(Protocol):
    """The documents that are registered under the names that a request gives."""

    def model(self, name: str) -> ModelGraph:
        """A registered model; raises InvalidInputError when there is none."""
        ...

    def cluster(self, name: str) -> Cluster:
        """A registered cluster; raises InvalidInputError when there is none."""
        ...

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest calibration of a key, a device's of a registered cluster or that of runs; None when there is none."""
        ...

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return True if requests of such a cluster, registered or not, use what was learned from runs."""
        ...


class NoRegistry:
    """Where nothing is registered."""

    def model(self, name: str) -> ModelGraph:
        """Always refuses."""
        raise ModelError("registered models are known to the service only", given=name, remedy="give the model itself")

    def cluster(self, name: str) -> Cluster:
        """Always refuses."""
        raise ClusterError("registered clusters are known to the service only", given=name, remedy="give the cluster itself")

    def newest_calibration(self, key: str) -> Calibration | None:
        """None: there is no registered cluster."""
        return None

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return False: nothing is stored."""
        return False


NO_REGISTRY = NoRegistry()


class ModelFiles(Protocol):
    """The reader of a model's file that a request names."""

    def read(self, path: str) -> object:
        """The parsed document at a path; raises InvalidInputError."""
        ...

    def read_config(self, name: str) -> tuple[object, str]:
        """The parsed Hugging Face config of a path or Hub id, and the model's name; raises InvalidInputError."""
        ...

    def has(self, name: str) -> bool:
        """Return True if there is a file or folder of that name, whatever is in it."""
        ...

    def stated_parameters(self, name: str, config: Mapping[str, Any]) -> StatedParameters | None:
        """What the files beside a config state of the model's parameters, None where nothing does."""
        ...


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model, the only sequence length that it has if it is a trace, and its config.json if it comes from one."""

    graph: ModelGraph
    seq_len: int | None = None
    config: dict[str, Any] | None = None


def read_source(source: ModelSource, files: ModelFiles, registry: Registry, entry: Entry) -> ReadModel:
    """Read the model that a source names, under the source's name if it gives one; raises DocumentError."""
    kind = source.source()
    with faults_at(kind):
        if kind == REGISTERED:
            return ReadModel(registry.model(str(source.name)))
        read = _graph(source, files, entry) if kind == "graph" else _READERS[kind](source, files)
    return read if source.name is None else replace(read, graph=replace(read.graph, name=source.name))


def _catalogue_model(source: ModelSource, files: ModelFiles) -> ReadModel:
    return _of_catalogue(str(source.catalog))


def _of_catalogue(name: str) -> ReadModel:
    from meshwright.app.models import catalog

    return ReadModel(catalog.model(name), config=catalog.model_document(name))


def _inline_config(source: ModelSource, files: ModelFiles) -> ReadModel:
    return _read_config(source.config, name=source.name or "model", assume_decoder=source.assume_decoder)


def _config_file(source: ModelSource, files: ModelFiles) -> ReadModel:
    given = str(source.huggingface)
    if catalogue_name_of(given) is not None:
        return _by_name(id_as_written(given), copy_of(id_as_written(given)))
    try:
        document, name = files.read_config(given)
    except InvalidInputError:
        copy = copy_of(given)
        if copy is None or files.has(given):
            raise
        return _by_name(given, copy)
    stated = files.stated_parameters(given, document) if source.assume_decoder and isinstance(document, dict) else None
    return _read_config(document, name=name, assume_decoder=source.assume_decoder, stated=stated)


def _by_name(given: str, copy: Copy | None) -> ReadModel:
    """The catalogue model that a name means, under that name, its weights stored as the name says."""
    assert copy is not None, "an id of the catalogue is known by its name"
    read = _of_catalogue(copy.name)
    config = copy.config(read.config or {}, has_experts=EXPERTS in read.graph.dims)
    ending = DECODER_OF if copy.listed in TEXT_DECODERS else "" if copy.is_sure else SIZES_OF.format(copy.name)
    graph = replace(read.graph, name=f"{given}{ending}")
    if not copy.is_sure:
        graph = replace(graph, hyperparameters=None)
    elif copy.listed in OTHER_HYPERPARAMETERS:
        positions = OTHER_POSITIONS.get(str(copy.listed))
        graph = replace(graph, hyperparameters=None if positions is None else Hyperparameters(positions=positions))
    return replace(read, graph=graph, config=config)


def _read_config(document: object, *, name: str, assume_decoder: bool, stated: StatedParameters | None = None) -> ReadModel:
    from meshwright.app.models.huggingface import read_huggingface_config
    from meshwright.app.models.native_params import as_config, is_native

    if not isinstance(document, dict):
        raise ModelError("a Hugging Face config is a JSON object", given=type(document).__name__)
    check_values(document, Entry.FOREIGN)
    if is_native(document):
        document = as_config(document)
    graph = read_huggingface_config(document, name=name, assume_decoder=assume_decoder, stated=stated)
    return ReadModel(graph, config=document)


def _graph(source: ModelSource, files: ModelFiles, entry: Entry) -> ReadModel:
    """A model graph inline or in a file, or the file of a traced graph."""
    if isinstance(source.graph, ModelGraph):
        return ReadModel(source.graph)
    document = files.read(str(source.graph))
    check_values(document, entry)
    from meshwright.app.models.traced.layers import in_layers
    from meshwright.app.models.traced.model import is_traced_graph, read_traced_graph

    if is_traced_graph(document):
        traced = read_traced_graph(document)
        return ReadModel(in_layers(traced.graph), traced.seq_len)
    return ReadModel(read_record(ModelGraph, document, what="model graph"))


_READERS = {"catalog": _catalogue_model, "config": _inline_config, "huggingface": _config_file}
