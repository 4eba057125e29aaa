"""A traced graph as a model graph: one block whose operators are those of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.documents.records import read_record
from meshwright.app.importers.traced.document import TRACED_GRAPH_SCHEMA, TracedGraph
from meshwright.app.importers.traced.grouping import grouped
from meshwright.app.importers.traced.lowering import Lowering
from meshwright.app.importers.traced.naming import DimNames, roles
from meshwright.app.importers.traced.products import PRODUCTS
from meshwright.app.importers.traced.reading import Handler, Trace
from meshwright.app.importers.traced.vectors import VECTORS
from meshwright.app.importers.traced.views import VIEWS
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import SEQ
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph

BLOCK = "trace"
"""Name of the one block."""

HANDLERS: Mapping[str, Handler] = {**VIEWS, **PRODUCTS, **VECTORS}
"""The handler of each known operator, by its name without the overload."""


@dataclass(frozen=True, slots=True)
class TracedModel:
    """The model graph, and the sequence length of its trace; None where no dim of it is the sequence."""

    graph: ModelGraph
    seq_len: int | None


def is_traced_graph(document: object) -> bool:
    """Return True if a document says that it is a traced graph."""
    return isinstance(document, Mapping) and document.get("schema") == TRACED_GRAPH_SCHEMA


def read_traced_graph(document: object) -> TracedModel:
    """The model graph of a traced graph's document.

    Raises DocumentError for a document that is no traced graph, and ModelError for operators that nobody knows, by name,
    and for shapes that can't be followed.
    """
    traced = read_record(TracedGraph, document, what="traced graph")
    trace = Trace(traced)
    trace.read(traced.operators, HANDLERS)
    steps = grouped(trace.steps)
    if not steps:
        raise ModelError("a trace computes nothing with its parameters", given=traced.name)
    names = DimNames(roles(trace), steps)
    operators = Lowering(names, trace.parameters, BLOCK).operators(steps)
    used = {dim for operator in operators for dim in operator.dims}
    graph = ModelGraph(
        name=traced.name,
        dims={dim: size for dim, size in names.sizes.items() if dim in used},
        blocks=(Block(BLOCK, operators, output=operators[-1].outputs[0].name),),
        chain=(BlockRun(BLOCK),),
    )
    return TracedModel(graph, names.traced_sizes[SEQ] if SEQ in used else None)
