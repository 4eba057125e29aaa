"""Native graphs: what is written is read back, and a graph that can't be used is refused with the field's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from meshwright.app.base.documents import parse_document
from meshwright.app.base.records import read_record
from meshwright.app.models.catalog import model, model_names
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.graph import ModelGraph


def read_graph(text: bytes) -> ModelGraph:
    """Return the model graph in a document, read as the file that a request names."""
    return read_record(ModelGraph, parse_document(text, what="model graph"), what="model graph")


def document(name: str = "llama-3.1-8b") -> dict[str, Any]:
    """The JSON form of a catalogue model."""
    return json.loads(TypeAdapter(ModelGraph).dump_json(model(name)))  # type: ignore[no-any-return]


@pytest.mark.slow_beyond(60)
@pytest.mark.parametrize("name", model_names())
def test_written_graph_is_read_back_equal(name: str) -> None:
    assert read_graph(TypeAdapter(ModelGraph).dump_json(model(name))) == model(name)


def _unknown_field(graph: dict[str, Any]) -> None:
    graph["blocks"][1]["operators"][0]["colour"] = "red"


def _negative_dim(graph: dict[str, Any]) -> None:
    graph["dims"]["hidden"] = -1


def _dim_of_text(graph: dict[str, Any]) -> None:
    graph["dims"]["hidden"] = "4096"


def _huge_dim(graph: dict[str, Any]) -> None:
    graph["dims"]["hidden"] = 10**15


def _tensor_of_many_dims(graph: dict[str, Any]) -> None:
    graph["blocks"][1]["operators"][0]["outputs"][0]["dims"] = ["batch", "seq"] + ["hidden"] * 40


def _unknown_kind(graph: dict[str, Any]) -> None:
    graph["blocks"][1]["operators"][0]["kind"] = "magic"


def _zero_repeat(graph: dict[str, Any]) -> None:
    graph["chain"][1]["repeat"] = 0


def _unknown_schema(graph: dict[str, Any]) -> None:
    graph["schema"] = "meshwright.model-graph/99"


def _cyclic_block(graph: dict[str, Any]) -> None:
    layer = graph["blocks"][1]
    layer["operators"][0]["inputs"] = [{"name": layer["output"], "dims": ["batch", "seq", "hidden"]}]
    layer["operators"][0]["saved"] = []


def _cyclic_runs(graph: dict[str, Any]) -> None:
    graph["edges"] = [[0, 1], [1, 2], [2, 1]]


def _no_blocks(graph: dict[str, Any]) -> None:
    del graph["blocks"]


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unknown field": (_unknown_field, "colour"),
    "negative dim": (_negative_dim, "dims.hidden"),
    "dim of text": (_dim_of_text, "dims.hidden"),
    "huge dim": (_huge_dim, "dims are too large"),
    "tensor of many dims": (_tensor_of_many_dims, "too many dims"),
    "unknown kind": (_unknown_kind, "kind"),
    "zero repeat": (_zero_repeat, "chain.1.repeat"),
    "unknown schema": (_unknown_schema, "meshwright.model-graph/99"),
    "cyclic block": (_cyclic_block, "cycle"),
    "cyclic runs": (_cyclic_runs, "cycle"),
    "missing blocks": (_no_blocks, "blocks"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_graph_is_refused_by_name(case: str) -> None:
    break_it, reason = BROKEN[case]
    graph = document()
    break_it(graph)
    with pytest.raises(InvalidInputError) as refusal:
        read_graph(json.dumps(graph).encode())
    assert reason in str(refusal.value)


@pytest.mark.parametrize("text", [b"[]", b"null", b"3", b"hello", b"", b"[" * 100_000, b'{"name": NaN}'])
def test_text_that_is_no_graph_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read_graph(text)
