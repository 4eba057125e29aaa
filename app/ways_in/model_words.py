"""A model as people name it on a command line: a catalogue name, a Hub id, a folder, a config.json or a model graph."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.app.catalog.huggingface_ids import CATALOGUE_NAMES, catalogue_name_of, id_as_written
from meshwright.app.ways_in.hub_cache import is_model_id
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.names import did_you_mean

_GRAPH_SCHEMA = re.compile(rb'"?schema"?\s*:\s*"?meshwright\.')
_HEAD_BYTES = 4096


def model_of_words(text: str) -> dict[str, str]:
    """Return the ``model`` of a request for a model as it was typed; raises ModelError with the nearest name."""
    from meshwright.app.catalog import model_names

    named = _of_catalogue(text)
    if named is not None:
        return named
    if _exists(text):
        return {"graph" if _is_graph(Path(text)) else "huggingface": text}
    if is_model_id(text):
        return {"huggingface": text}
    raise ModelError(
        "there is no such model, folder or file",
        given=text,
        allowed="a name of the catalogue, an id of the Hugging Face Hub (ORG/NAME), a checkpoint's folder, a config.json",
        remedy=did_you_mean(text, _known_names(), otherwise=f"choose one of {', '.join(model_names())}"),
    )


def model_of_catalogue(text: str) -> dict[str, str]:
    """Return the ``model`` of a request for a model that needs no file of this machine: what a stranger may name.

    Raises ModelError with the nearest name.
    """
    named = _of_catalogue(text)
    if named is None:
        raise ModelError(
            "the catalogue has no such model",
            given=text,
            allowed="a name of the catalogue, or an id of the Hugging Face Hub that it knows",
            remedy=did_you_mean(text, _known_names(), otherwise="choose one of those, or send a whole request to the API"),
        )
    return named


def _of_catalogue(text: str) -> dict[str, str] | None:
    from meshwright.app.catalog import model_names

    catalogue = {name.casefold(): name for name in model_names()}
    if text.casefold() in catalogue:
        return {"catalog": catalogue[text.casefold()]}
    return None if catalogue_name_of(text) is None else {"huggingface": id_as_written(text)}


def _known_names() -> tuple[str, ...]:
    from meshwright.app.catalog import model_names

    return (*model_names(), *CATALOGUE_NAMES)


def looks_like_a_model(text: str) -> bool:
    """Return True for text that names a model and no file of this machine."""
    from meshwright.app.catalog import model_names

    return text.casefold() in model_names() or is_model_id(text)


def _is_graph(path: Path) -> bool:
    """Return True for the file of a model graph of ours, or of a compressed graph; a config.json is neither."""
    if path.is_dir():
        return False
    try:
        with path.open("rb") as file:
            return path.suffix == ".gz" or _GRAPH_SCHEMA.search(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        # A name too long, or with a null character.
        return False
