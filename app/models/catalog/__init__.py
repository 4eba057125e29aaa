"""Models that can be named instead of given as a file."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.names import did_you_mean
from meshwright.solver.problem.graph import ModelGraph

# What a catalogue file says to people (source, assumptions) and not to the importer.
NOTES_FIELD = "notes"


def model_names() -> tuple[str, ...]:
    """Names of all models of the catalogue, sorted."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _models().iterdir() if entry.name.endswith(".json")))


@cache
def model(name: str) -> ModelGraph:
    """The model graph of that name; raises ModelError with the names there are."""
    if name not in model_names():
        remedy = did_you_mean(name, model_names(), otherwise="choose one, or give a 'config' or 'huggingface'")
        raise ModelError("the catalogue has no such model", given=name, allowed=", ".join(model_names()), remedy=remedy)
    return read_huggingface_config(_document(name), name=name)


def model_document(name: str) -> dict[str, Any]:
    """The config.json of that name, without its notes; raises ModelError with the names there are."""
    model(name)
    return dict(_document(name))


@cache
def _document(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_models().joinpath(f"{name}.json").read_text(encoding="utf-8"))
    document.pop(NOTES_FIELD, None)
    return document


def _models() -> Traversable:
    return files(__name__).joinpath("models")
