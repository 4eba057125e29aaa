"""Reading what commands are given: documents from files or stdin, and files that a request names."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.app.base.documents import MAX_DOCUMENT_BYTES, NonFinite, parse_document, read_bounded
from meshwright.app.models.checkpoint import QUANTISATION_FILE, with_quantisation_file
from meshwright.app.models.stated_parameters import StatedParameters, stated_by_files, stated_by_names
from meshwright.app.requests.calibrations import StoredCalibrations
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.models import NO_REGISTRY, Registry
from meshwright.app.requests.own_hardware import own_nodes
from meshwright.app.requests.resolve import NO_STORE, Files, resolve_request
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import InvalidInputError, ModelError
from meshwright.solver.problem.request import PlanRequest

STDIN = "-"
ONNX_ENDING = ".onnx"


class FilesBeside:
    """Files that a request names, found relative to the request file."""

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, path: str) -> object:
        """The parsed document at a path; raises InvalidInputError.

        These may be files of other tools, in which Infinity stands; fields that want a number don't take it. A model in ONNX
        is read as its traced graph.
        """
        what = f"file {path}"
        if path.lower().endswith(ONNX_ENDING):
            return _traced_onnx(self._folder / path, what)
        return parse_document(_read(self._folder / path, what), what=what, non_finite=NonFinite.AS_TEXT)

    def has(self, name: str) -> bool:
        """Return True if there is a file or folder of that name."""
        from meshwright.app.requests.model_words import is_here

        return is_here(str(self._folder / name))

    def read_config(self, name: str) -> tuple[object, str]:
        """The parsed Hugging Face config of a file, of a checkpoint's folder, or of a Hub id in the local cache, and the
        model's name; raises InvalidInputError."""
        from meshwright.app.models.gguf import ENDING as GGUF_ENDING
        from meshwright.app.models.gguf import read_gguf
        from meshwright.app.models.native_params import PARAMS
        from meshwright.app.requests.model_words import CONFIG, cached_config, is_model_id, not_cached

        path = self._folder / name
        if _is_folder(path):
            file = PARAMS if (path / PARAMS).is_file() and not (path / CONFIG).exists() else CONFIG
            return self._with_quantisation(self.read(str(Path(name) / file)), path), path.resolve().name or CONFIG
        if path.suffix.lower() == GGUF_ENDING:
            return read_gguf(path), path.stem
        if not is_model_id(name) or path.exists():
            return self.read(name), Path(name).stem
        cached = cached_config(name)
        if cached is None:
            raise not_cached(name)
        read = parse_document(_read(cached, f"config of {name}"), what=f"config of {name}", non_finite=NonFinite.AS_TEXT)
        return self._with_quantisation(read, cached.parent), name

    def stated_parameters(self, name: str, config: Mapping[str, Any]) -> StatedParameters | None:
        """What the files beside a config state of the model's parameters, None where nothing does."""
        from meshwright.app.requests.model_words import cached_config, is_model_id

        path = self._folder / name
        if _is_folder(path):
            return stated_by_files(path, config)
        if path.exists():
            return stated_by_files(path.parent, config) or stated_by_names((path.resolve().parent.name,))
        cached = cached_config(name) if is_model_id(name) else None
        return None if cached is None else stated_by_files(cached.parent, config)

    @staticmethod
    def _with_quantisation(config: object, folder: Path) -> object:
        """The config with what a file of quantisation in its folder says."""
        beside = folder / QUANTISATION_FILE
        if not beside.is_file():
            return config
        return with_quantisation_file(config, parse_document(_read(beside, QUANTISATION_FILE), what=QUANTISATION_FILE))

    def read_text(self, path: str) -> str:
        """The text of the file at a path; raises InvalidInputError."""
        what = f"file {path}"
        try:
            return _read(self._folder / path, what).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidInputError(f"the {what} is not text in UTF-8", given=path) from None

    def own_nodes(self) -> dict[str, NodeType]:
        """The node types that this machine's user has added; raises InvalidInputError for a file that holds none."""
        return own_nodes()


def read_document(path: str, *, what: str) -> object:
    """The parsed document in a file, or on stdin for "-"; raises InvalidInputError."""
    text = _bounded(sys.stdin.buffer, what) if path == STDIN else _read(Path(path), what)
    return parse_document(text, what=what)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        # ValueError: a path with a null character; reading it tells what is wrong.
        return False


def read_request(
    path: str,
    *,
    stored: StoredCalibrations = NO_STORE,
    calibrations: Sequence[str] = (),
    entry: Entry = Entry.NEW,
    registry: Registry = NO_REGISTRY,
    files: Files | None = None,
) -> PlanRequest:
    """The request in a file, or on stdin for "-", references resolved; raises InvalidInputError.

    ``calibrations`` are used instead of those that it names; ``files`` are those that it may name, by default all beside it.
    """
    return given_request(
        read_document(path, what="request"),
        files=files or FilesBeside(folder_of(path)),
        stored=stored,
        calibrations=calibrations,
        entry=entry,
        registry=registry,
    )


def given_request(
    document: object,
    *,
    files: Files,
    stored: StoredCalibrations = NO_STORE,
    calibrations: Sequence[str] = (),
    entry: Entry = Entry.NEW,
    registry: Registry = NO_REGISTRY,
) -> PlanRequest:
    """The request of a parsed document, which may name ``files``; raises InvalidInputError."""
    if calibrations and isinstance(document, Mapping):
        document = {**document, "calibrations": list(calibrations)}
    return resolve_request(document, files=files, registry=registry, stored=stored, entry=entry)


def folder_of(path: str) -> Path:
    """The folder against which a request's paths are read: the file's, or for stdin the current one."""
    return Path() if path == STDIN else Path(path).parent


def _traced_onnx(path: Path, what: str) -> object:
    """The traced graph of a model in ONNX; raises InvalidInputError."""
    size = path.stat().st_size if path.is_file() else 0
    if size > MAX_DOCUMENT_BYTES:
        raise InvalidInputError(
            f"the {what} is too large",
            given=f"{size} bytes",
            allowed=f"at most {MAX_DOCUMENT_BYTES} bytes",
            remedy="keep its weights in files of external data, or write its traced graph with onnx_export.py",
        )
    content = _read(path, what)
    try:
        from meshwright.app.models.traced.onnx_export import parsed_model, traced_document
    except ImportError:
        raise InvalidInputError(
            f"the {what} needs the package onnx, which is not installed",
            remedy="pip install 'meshwright[onnx]'; or, where onnx is, write a traced graph with onnx_export.py "
            "(docs/traced-graphs.md) and name that",
        ) from None
    try:
        return traced_document(parsed_model(content), name=path.stem, folder=path.parent)
    except ValueError as error:
        raise ModelError(f"the {what} can't be read as a trace: {error}") from None


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file, what)
    except InvalidInputError:
        raise
    except (OSError, ValueError) as error:
        # ValueError: a path with a null character.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(f"the {what} can't be read: {reason}", given=str(path)) from None


def _bounded(file: BinaryIO, what: str) -> bytes:
    """Return the contents of a file, read no further than a document may be long."""
    return read_bounded(file, limit=MAX_DOCUMENT_BYTES, what=what)
