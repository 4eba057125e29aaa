"""The model of a row: one of the catalogue under any of its names, or a config file in a folder that is given."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.app.catalog import model, model_names
from meshwright.app.catalog.huggingface_ids import catalogue_name_in_words
from meshwright.app.importers.huggingface import read_huggingface_config
from meshwright.app.requests.files import read_document
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.errors import ModelError
from meshwright.solver.problem.graph import ModelGraph


def named_model(text: str, models: Path | None) -> tuple[str, str]:
    """Return the name of a row's model, and the path of its config file, empty where it is the catalogue's.

    In the folder ``models`` the model ORG/NAME is ORG--NAME.json, ORG/NAME/config.json, NAME.json or NAME/config.json, or the
    cell is the path of a file in it. Raises NotPredictedError where there is neither.
    """
    config = None if models is None else _file_of(text, models)
    if config is not None:
        return text, str(config)
    name = catalogue_name_in_words(text, model_names())
    if name is None:
        raise NotPredictedError(f"model not in the catalogue: {text}")
    return name, ""


def _file_of(text: str, models: Path) -> Path | None:
    last, folder = text.rsplit("/", maxsplit=1)[-1], models.resolve()
    tried = (text, f"{text.replace('/', '--')}.json", f"{text}/config.json", f"{last}.json", f"{last}/config.json")
    for found in (folder / name for name in tried):
        if found.resolve().is_relative_to(folder) and found.is_file():
            return found
    return None


@cache
def graph_of(name: str, config: str) -> ModelGraph:
    """The graph of a named model; raises ModelError for a config file that can't be read as one."""
    if not config:
        return model(name)
    document = read_document(config, what="the config of a model")
    if not isinstance(document, dict):
        raise ModelError("the config of a model must be an object", given=config)
    return read_huggingface_config(document, name=name)
