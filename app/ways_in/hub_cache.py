"""A model's ``config.json`` in the Hugging Face cache of this machine; nothing is fetched.

Source: Hugging Face Hub docs, "Understand caching": ``models--ORG--NAME/refs/main`` names the folder under ``snapshots``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.names import nearest_name

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
    from meshwright.app.catalog.huggingface_ids import CATALOGUE_NAMES

    near = nearest_name(model_id, CATALOGUE_NAMES)
    hint = f", or if you meant {near!r}, which needs no download, write that" if near else ""
    return ModelError(
        "this model of the Hugging Face Hub is not on this machine",
        given=model_id,
        allowed=f"a model of the catalogue, one in the cache ({hub_cache()}), a folder or a config.json",
        remedy=f"get its config: hf download {model_id} {CONFIG}{hint}",
    )
