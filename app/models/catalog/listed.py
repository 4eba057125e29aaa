"""The catalogue's models of which a table holds the sizes, and further ids of the Hugging Face Hub.

A row of ``listed.csv`` is the sizes of a config.json with the parameters that they make, ``more`` its other fields, and the ids
that have these sizes; of a row without sizes the catalogue has a file. An id behind which a number stands (``id@tokens``) has
other positions than the row. ``decoders`` are ids of models of text and images with the sizes of their text decoder.

Sources: the published config.json files, of which public repositories repeat many (Lightning-AI/litgpt, mlc-ai/mlc-llm,
cli99/llm-analysis). Each row's parameters are those of its checkpoint, or of its card, to 0.2%.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

_COUNTS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class ListedId:
    """An id of the Hub.

    name          the catalogue's name of its sizes
    positions     tokens of its longest sequence, where they are not that model's
    is_decoder    whether the sizes are those of its text decoder alone
    """

    text: str
    name: str
    positions: int | None
    is_decoder: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """The table: config.json documents and parameters by name, and ids."""

    documents: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, int]
    ids: tuple[ListedId, ...]


def _read() -> Listed:
    documents: dict[str, Mapping[str, Any]] = {}
    parameters: dict[str, int] = {}
    ids: list[ListedId] = []
    with files("meshwright.app.models.catalog").joinpath("listed.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ids.extend(_ids(row["name"], row["ids"], is_decoder=False))
            ids.extend(_ids(row["name"], row["decoders"], is_decoder=True))
            if row["model_type"]:
                documents[row["name"]] = _document(row)
                parameters[row["name"]] = int(row["parameters"])
    return Listed(MappingProxyType(documents), MappingProxyType(parameters), tuple(ids))


def _document(row: Mapping[str, str]) -> Mapping[str, Any]:
    sizes = {name: int(row[name]) for name in _COUNTS if row[name]}
    more = json.loads(row["more"]) if row["more"] else {}
    return {"model_type": row["model_type"], **sizes, "tie_word_embeddings": row["tie_word_embeddings"] == "true", **more}


def _ids(name: str, texts: str, *, is_decoder: bool) -> Iterator[ListedId]:
    for text in texts.split():
        given, _, positions = text.partition("@")
        yield ListedId(given, name, int(positions) if positions else None, is_decoder)


LISTED = _read()
"""The table as it is shipped."""
