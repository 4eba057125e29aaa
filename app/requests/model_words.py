"""A model as people name it on a command line: a catalogue name, a Hub id, a folder, a config.json or a model graph."""

from __future__ import annotations

import os
import re
from pathlib import Path

from meshwright.app.models.catalog.copies import copy_of
from meshwright.app.models.catalog.huggingface_ids import CATALOGUE_NAMES, catalogue_name_of, id_as_written
from meshwright.costmodels.errors import InvalidInputError, ModelError, did_you_mean, names_like, nearest_name

_GRAPH_SCHEMA = re.compile(rb'"?schema"?\s*:\s*"?meshwright\.')
_HEAD_BYTES = 4096


def model_of_words(text: str) -> dict[str, str]:
    """Return the ``model`` of a request for a model as it was typed; raises ModelError with the nearest name."""
    from meshwright.app.models.catalog import model_names

    named = _of_catalogue(text)
    if named is not None:
        return named
    if is_here(text):
        return {"graph" if _is_graph(Path(text)) else "huggingface": text}
    if is_model_id(text) or copy_of(text) is not None:
        return {"huggingface": text}
    raise ModelError(
        "there is no such model, folder or file",
        given=text,
        allowed="a name of the catalogue, an id of the Hugging Face Hub (ORG/NAME), a checkpoint's folder, a config.json",
        remedy=did_you_mean(
            text,
            _known_names(),
            otherwise=f"say a file that is there, or choose one of {names_like(Path(text).name, model_names())}",
        ),
    )


def model_of_catalogue(text: str) -> dict[str, str]:
    """Return the ``model`` of a request for a model that needs no file of this machine: what a stranger may name.

    Raises ModelError with the nearest name.
    """
    named = _of_catalogue(text) or (None if copy_of(text) is None else {"huggingface": text})
    if named is None:
        raise ModelError(
            "the catalogue has no such model",
            given=text,
            allowed="a name of the catalogue, or an id of the Hugging Face Hub that it knows",
            remedy=did_you_mean(text, _known_names(), otherwise="choose one of those, or send a whole request to the API"),
        )
    return named


def _of_catalogue(text: str) -> dict[str, str] | None:
    from meshwright.app.models.catalog import model_names

    catalogue = {name.casefold(): name for name in model_names()}
    if text.casefold() in catalogue:
        return {"catalog": catalogue[text.casefold()]}
    if catalogue_name_of(text) is not None:
        return {"huggingface": id_as_written(text)}
    return None


def _known_names() -> tuple[str, ...]:
    from meshwright.app.models.catalog import model_names

    return (*model_names(), *CATALOGUE_NAMES)


def looks_like_a_model(text: str) -> bool:
    """Return True for text that names a model and no file of this machine."""
    from meshwright.app.models.catalog import model_names

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


def is_here(text: str) -> bool:
    """Return True for the name of a file or folder of this machine."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        # A name too long, or with a null character.
        return False


# A model's ``config.json`` in the Hugging Face cache of this machine; nothing is fetched.
#
# Source: Hugging Face Hub docs, "Understand caching": ``models--ORG--NAME/refs/main`` names the folder under ``snapshots``.

CONFIG = "config.json"

# Hub ids: two names of letters, digits, "-", "_" and ".", of 96 characters at most (huggingface_hub, validate_repo_id).
_MODEL_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_FILE_ENDINGS = (".json", ".gz", ".yaml", ".yml", ".gguf")


def is_model_id(text: str) -> bool:
    """Return True for text of the form ``ORG/NAME`` that is no name of a file of ours and no way out of a folder."""
    return _MODEL_ID.fullmatch(text) is not None and ".." not in text and not text.endswith(_FILE_ENDINGS)


def hub_cache() -> Path:
    """The folder in which ``hf download`` keeps models: HF_HUB_CACHE, or ``hub`` under HF_HOME."""
    whole = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if whole:
        return Path(whole).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.environ.get("HF_HOME") or caches / "huggingface").expanduser() / "hub"


def cached_config(model_id: str) -> Path | None:
    """Return the path of a model's config in the cache: of its main branch, else of the snapshot that is first by name."""
    folder = hub_cache() / f"models--{model_id.replace('/', '--')}"
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    snapshots = folder / "snapshots"
    if re.fullmatch(r"[0-9A-Za-z_-]{1,100}", main) and (snapshots / main / CONFIG).is_file():
        return snapshots / main / CONFIG
    return next(iter(sorted(snapshots.glob(f"*/{CONFIG}"))), None)


def not_cached(model_id: str) -> ModelError:
    """Return the error for a model that is neither in the catalogue nor in the cache, with the line that gets it."""
    from meshwright.app.models.catalog.huggingface_ids import CATALOGUE_NAMES

    near = nearest_name(model_id, CATALOGUE_NAMES)
    hint = f", or if you meant {near!r}, which needs no download, write that" if near else ""
    return ModelError(
        "this model of the Hugging Face Hub is not on this machine",
        given=model_id,
        allowed=f"a model of the catalogue, one in the cache ({hub_cache()}), a folder or a config.json",
        remedy=f"get its config: hf download {model_id} {CONFIG}{hint}",
    )


# A model's config fetched from the Hugging Face Hub, where the user asked for that and the Hub's own client is installed.


def download_config(model: str) -> None:
    """Fetch the config of a Hub id into the cache; nothing where it is there, or the catalogue has it.

    Raises InvalidInputError without ``huggingface_hub``, ModelError for what can't be fetched.
    """
    if catalogue_name_of(model) is not None or not is_model_id(model) or cached_config(model) is not None:
        return
    try:
        import huggingface_hub
    except ImportError:
        raise InvalidInputError(
            "--download needs the package huggingface_hub, which is not installed",
            given=model,
            remedy="pip install huggingface_hub; or give the path of a config.json",
        ) from None
    try:
        huggingface_hub.hf_hub_download(model, CONFIG)
    except Exception as error:  # the client raises errors of its own, of requests and of the system
        raise ModelError(
            f"the config can't be fetched: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            given=model,
            remedy=f"look at https://huggingface.co/{model}; a gated model needs: hf auth login",
        ) from None
