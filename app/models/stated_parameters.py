"""The parameters that a checkpoint's files or a model's name state, to compare a decoder that was assumed with.

Sources: Hugging Face's safetensors format (header of 8 bytes of length and a JSON object) and its index of sharded checkpoints.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.costmodels.errors import ModelError

INDEX = "model.safetensors.index.json"
_SHARDS = "*.safetensors"
_MOST_SHARDS = 1000
_MOST_BYTES = 64 * 2**20
_MOST_PARAMETERS = 10**15
_LENGTH_BYTES = 8
_BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
_LEARNED = frozenset({"F64", "F32", "F16", "BF16"})

TOLERANCE = 0.05
"""A decoder that was assumed may lack biases and norms, which are less than a twentieth of any model."""

_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
# 7B, 1.5b, 350M between separators; no count of active parameters (A3B) and no product of experts (8x7B).
_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4})(\.\d{1,3})?([BbMT])(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class StatedParameters:
    """A count that is between ``least`` and ``most``, and where it stands."""

    least: float
    most: float
    where: str


def stated_by_files(folder: Path, config: Mapping[str, Any]) -> StatedParameters | None:
    """What the files of a checkpoint in a folder state of its parameters; None where they state nothing that can be read.

    Weights in a narrow format are packed in ways of their own: of these the index's own count is taken alone.
    """
    metadata = _metadata(folder)
    count = _count(metadata.get("total_parameters"))
    if count is not None:
        return _exactly(count, f"'total_parameters' of {INDEX}")
    if _is_quantised(config):
        return None
    stored = _of_headers(folder)
    if stored is not None:
        return _exactly(float(stored), "the headers of its files")
    total, width = _count(metadata.get("total_size")), _BYTES_OF.get(str(config.get("torch_dtype") or config.get("dtype")))
    if total is not None and width is not None:
        return _exactly(total / width, f"'total_size' of {INDEX}")
    return None


def stated_by_names(names: Iterable[object]) -> StatedParameters | None:
    """The size that the first of these names with one states, which is rounded: 7B is anything from 6.5 to 7.5 billion."""
    for name in names:
        found = _SIZE_IN_NAME.search(name) if isinstance(name, str) else None
        if found is None:
            continue
        whole, fraction, unit = found.groups()
        scale = _UNITS[unit.lower()]
        half = 0.5 * 10.0 ** -(len(fraction) - 1 if fraction else 0)
        size = float(whole + (fraction or ""))
        return StatedParameters((size - half) * scale, (size + half) * scale, f"the name {name!r}")
    return None


def refuse_contradiction(parameters: int, stated: StatedParameters) -> None:
    """Raise ModelError where an assumed decoder has more or fewer parameters than are stated, by more than a twentieth."""
    if (1 - TOLERANCE) * stated.least <= parameters <= (1 + TOLERANCE) * stated.most:
        return
    raise ModelError(
        "the decoder that the fields describe is not this model: its parameters are others than stated",
        given=f"{parameters / 1e9:,.2f} billion; {stated.where} says {_words(stated)}",
        allowed=f"a difference of {TOLERANCE:.0%}",
        remedy="give the model as a model graph; the kind has parts that its fields do not name",
    )


def _words(stated: StatedParameters) -> str:
    return f"{(stated.least + stated.most) / 2e9:,.2f} billion"


def _exactly(count: float, where: str) -> StatedParameters:
    return StatedParameters(count, count, where)


def _metadata(folder: Path) -> Mapping[str, Any]:
    try:
        with (folder / INDEX).open("rb") as file:
            document = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _count(value: object) -> float | None:
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST_PARAMETERS
    return float(value) if is_count and isinstance(value, int | float) else None


def _is_quantised(config: Mapping[str, Any]) -> bool:
    text = config.get("text_config")
    return any(each.get("quantization_config") for each in (config, text) if isinstance(each, Mapping))


def _of_headers(folder: Path) -> int | None:
    """Numbers of all tensors in the folder's files; None where there are none, or one can't be read."""
    try:
        shards = sorted(folder.glob(_SHARDS))
    except OSError:
        return None
    if not shards or len(shards) > _MOST_SHARDS:
        return None
    counts = [_of_header(path) for path in shards]
    return None if None in counts else sum(count for count in counts if count is not None)


def _of_header(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 0 < length <= _MOST_BYTES:
                return None
            header = json.loads(file.read(length))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    return sum(_elements(entry) for name, entry in header.items() if name != "__metadata__")


def _elements(entry: object) -> int:
    shape = entry.get("shape") if isinstance(entry, dict) and entry.get("dtype") in _LEARNED else None
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        return 0
    return math.prod(shape)
