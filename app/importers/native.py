"""Native model graphs: JSON (or YAML) in the schema ``meshwright.model-graph/1``."""

from __future__ import annotations

from meshwright.app.documents.records import read_record
from meshwright.app.documents.text import parse_document
from meshwright.solver.problem.graph import ModelGraph


def read_native_graph(text: bytes) -> ModelGraph:
    """The model graph in a JSON or YAML document.

    Raises InvalidInputError for text that can't be read and for a graph that can't be used, naming the fields at fault.
    """
    return read_record(ModelGraph, parse_document(text, what="model graph"), what="model graph")
