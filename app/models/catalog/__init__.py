"""Models that can be named instead of given as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from meshwright.app.models.catalog.huggingface_ids import LISTED
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError, did_you_mean, names_like
from meshwright.solver.problem.graph import Hyperparameters, ModelGraph

# What a catalogue file says to people (source, assumptions) and not to the importer.
NOTES_FIELD = "notes"


def model_names() -> tuple[str, ...]:
    """Names of all models of the catalogue, sorted."""
    with_files = (entry.name.removesuffix(".json") for entry in _models().iterdir() if entry.name.endswith(".json"))
    return tuple(sorted((*with_files, *LISTED.documents)))


@cache
def model(name: str) -> ModelGraph:
    """The model graph of that name; raises ModelError with the names there are."""
    if name not in model_names():
        remedy = did_you_mean(name, model_names(), otherwise="choose one, or give a 'config' or 'huggingface'")
        raise ModelError("the catalogue has no such model", given=name, allowed=names_like(name, model_names()), remedy=remedy)
    graph = read_huggingface_config(_document(name), name=name)
    if name not in LISTED.documents:
        return graph
    # The table has sizes and positions, and no base or scaling of rotary positions.
    positions = None if graph.hyperparameters is None else graph.hyperparameters.positions
    return replace(graph, hyperparameters=None if positions is None else Hyperparameters(positions=positions))


def model_document(name: str) -> dict[str, Any]:
    """The config.json of that name, without its notes; raises ModelError with the names there are."""
    model(name)
    return dict(_document(name))


@cache
def _document(name: str) -> dict[str, Any]:
    if name in LISTED.documents:
        return dict(LISTED.documents[name])
    document: dict[str, Any] = json.loads(_models().joinpath(f"{name}.json").read_text(encoding="utf-8"))
    document.pop(NOTES_FIELD, None)
    return document


def _models() -> Traversable:
    return files(__name__).joinpath("models")
