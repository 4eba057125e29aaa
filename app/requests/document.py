"""The request document as Pydantic models: what a request file or a REST body may hold.

References (a catalogue name, a file) stand here as they were written; ``app.requests.resolve`` turns them into records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from meshwright.app.base.errors import DocumentError, FieldError
from meshwright.costmodels.cluster.cluster import NodeType, Nvme
from meshwright.costmodels.model.documents import DocumentLengths, Fill
from meshwright.costmodels.model.formats import FormatWord
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import (
    STRICT_RECORD,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import REQUEST_SCHEMA, Arrivals, Length, ServingWorkload, Slo, TrainingWorkload
from meshwright.solver.problem.search import Search

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

FilePath = Annotated[str, Len(1, 4096)]


def _reference_or_inline(value: Any) -> str:
    return "reference" if isinstance(value, str) else "inline"


GraphSource = Annotated[
    Annotated[FilePath, Tag("reference")] | Annotated[ModelGraph, Tag("inline")], Discriminator(_reference_or_inline)
]
NodeSource = Annotated[
    Annotated[Name, Tag("reference")] | Annotated[NodeType, Tag("inline")], Discriminator(_reference_or_inline)
]

CalibrationSource = Annotated[
    Annotated[FilePath, Tag("reference")] | Annotated[dict[str, Any], Tag("inline")], Discriminator(_reference_or_inline)
]


class ModelSource(BaseModel):
    """Where the model comes from: exactly one of the four sources, or else the ``name`` of a registered model."""

    model_config = STRICT

    catalog: Name | None = Field(None, description="Name of a model of the built-in catalogue.")
    config: dict[str, Any] | None = Field(None, description="A Hugging Face config.json, inline.")
    huggingface: FilePath | None = Field(
        None,
        description="Id of the Hugging Face Hub, ORG/NAME, that the catalogue knows. On the command line also one in the local "
        "cache, the path of a config.json, or the folder of a checkpoint.",
    )
    graph: GraphSource | None = Field(
        None, description="A meshwright.model-graph/1 document, inline; on the command line also its path."
    )
    assume_decoder: bool = Field(
        False,
        description="Whether a config of an unknown kind is read approximately, as a decoder of Llama's layers with the "
        "sizes and the experts that it names. A known kind is read exactly all the same.",
    )
    name: Name | None = Field(
        None, description="With a source, the name of the plan's model; without one, the name of a registered model."
    )

    def source(self) -> str:
        """The one source that is given; raises DocumentError when none or several are."""
        given = [name for name in MODEL_SOURCES if getattr(self, name) is not None]
        if not given and self.name is not None:
            return REGISTERED
        return _exactly_one(given, MODEL_SOURCES, what="model")


MODEL_SOURCES = ("catalog", "config", "huggingface", "graph")
REGISTERED = "name"


class GroupSource(BaseModel):
    """Equal nodes under one name."""

    model_config = STRICT

    name: Name
    node: NodeSource = Field(description="Name of a catalogue node type, or a node type inline.")
    nodes: PositiveInt
    lost_devices: NonNegativeInt = Field(0, description="Devices that each of these nodes has lost, with their network cards.")


class ClusterSource(BaseModel):
    """The cluster: one catalogue node type and how many, a list of node groups in rank order, or a registered cluster."""

    model_config = STRICT

    catalog: Name | None = Field(None, description="Name of a catalogue node type; goes with 'nodes'.")
    nodes: PositiveInt | None = Field(None, description="How many nodes of the type 'catalog'; 1 when left out.")
    groups: list[GroupSource] | None = None
    name: Name | None = Field(None, description="Name of a registered cluster; goes with nothing else.")
    oversubscription: PositiveFloat = Field(1.0, description="Network between nodes: 2 is a 2:1 spine.")
    nodes_per_leaf: PositiveInt | None = Field(
        None, description="Neighbouring nodes under one leaf switch, among which the network is not oversubscribed."
    )
    nvme: Nvme | None = Field(None, description="Drives of every node for state, instead of what node types say.")
    memory_reserve: Fraction = Field(0.0, description="Share of every device's memory that no plan may use.")

    def source(self) -> str:
        """The one source that is given; raises DocumentError when none or several are, or something goes with it that can't."""
        given = [name for name in CLUSTER_SOURCES if getattr(self, name) is not None]
        source = _exactly_one(given, CLUSTER_SOURCES, what="cluster")
        if source == REGISTERED and self.model_fields_set - {REGISTERED}:
            others = ", ".join(sorted(self.model_fields_set - {REGISTERED}))
            raise DocumentError(
                "faulty cluster", (FieldError("name", "goes with nothing else", given=others, remedy="remove it"),)
            )
        if source == "groups" and self.nodes is not None:
            fault = FieldError("nodes", "does not go with 'groups'", given=str(self.nodes), remedy="give 'nodes' in each group")
            raise DocumentError("faulty cluster", (fault,))
        return source


ClusterWords = Annotated[str, Len(1, 400), Field(description="A cluster in words: '8xH100', '3x8xH100@400Gb'.")]

CLUSTER_SOURCES = ("catalog", "groups", REGISTERED)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Requests arrive as a CSV file says: columns ``time`` (seconds), ``prompt`` and ``output`` (tokens). Command line only."""

    __pydantic_config__ = STRICT_RECORD

    process: Literal["trace"]
    file: FilePath


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Requests arrive at these times, in seconds; their lengths are drawn as the workload says."""

    __pydantic_config__ = STRICT_RECORD

    process: Literal["trace"]
    times_s: Annotated[tuple[NonNegativeFloat, ...], Len(2)]


@dataclass(frozen=True, slots=True)
class LengthFile:
    """Token counts as a file says, one a line, each equally likely. Command line only."""

    __pydantic_config__ = STRICT_RECORD

    file: FilePath


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """Lengths of documents as a file says, one a line: a number of tokens, or an object in JSON whose ``field`` is one, or
    the list of its tokens. Command line only."""

    __pydantic_config__ = STRICT_RECORD

    file: FilePath
    field: Name = "length"
    fill: Fill = Fill.PACKED


@dataclass(frozen=True, slots=True)
class TrainingSource(TrainingWorkload):
    """A training workload, whose lengths of documents may stand in a file."""

    lengths: DocumentLengths | DocumentFile | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check nothing yet: the file is read first."""


@dataclass(frozen=True, slots=True)
class ServingSource(ServingWorkload):
    """A serving workload, some of whose content may stand in files.

    ``precision``, ``weights`` and ``quantised`` are those of the model's checkpoint, which the ``quantization_config`` of its
    config.json says, unless those that are given contradict it; of a checkpoint that says none, bf16.
    """

    arrivals: Arrivals | TraceFile | TraceTimes  # type: ignore[assignment]
    prompt_tokens: Length | LengthFile | None = None  # type: ignore[assignment]
    output_tokens: Length | LengthFile | None = None  # type: ignore[assignment]
    precision: FormatWord | None = None  # type: ignore[assignment]
    quantised: Quantised | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check the contents of files, once they are read."""


class RunsUse(StrEnum):
    """The use of what was learned from measured runs."""

    NEWEST = "newest"
    IGNORE = "ignore"


class RequestDocument(BaseModel):
    """A request file: the model, the cluster, the workload, and what to look for."""

    model_config = STRICT | ConfigDict(title=REQUEST_SCHEMA, serialize_by_alias=True)

    schema_id: Literal["meshwright.request/1"] = Field(alias="schema")
    model: ModelSource
    cluster: Annotated[
        Annotated[ClusterWords, Tag("reference")] | Annotated[ClusterSource, Tag("inline")], Discriminator(_reference_or_inline)
    ]
    workload: Annotated[TrainingSource | ServingSource, Field(discriminator="kind")]
    slo: Slo = Field(default_factory=Slo)
    objective: Objective = Objective.THROUGHPUT
    search: Search = Field(default_factory=Search)
    calibrations: list[CalibrationSource] = Field(
        default_factory=list,
        description="Calibrations to use instead of the shipped ones of their devices: names of stored ones, inline documents; "
        "on the command line also paths of documents.",
    )
    runs: RunsUse = Field(
        RunsUse.NEWEST,
        description="Whether a training plan uses what was learned from measured runs of this hardware and framework.",
    )


def _exactly_one(given: list[str], allowed: tuple[str, ...], *, what: str) -> str:
    if len(given) == 1:
        return given[0]
    fault = FieldError(
        "",
        f"a {what} needs exactly one source",
        given=", ".join(given) or "none",
        allowed=", ".join(allowed),
        remedy="keep one of them" if given else "add one of them",
    )
    raise DocumentError(f"faulty {what}", (fault,))
