"""The header of a GGUF file as the config.json of the model that it holds; no weight is read.

Source: GGUF's specification (ggml, docs/gguf.md), versions 2 and 3: little-endian; names and values, then names and sizes of
tensors. Counts and lengths are the file's own claims: each is bounded before anything of that size is read.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.costmodels.errors import ModelError

ENDING = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_VALUES, _MOST_TENSORS, _MOST_DIMS = 10_000, 200_000, 4
_LONGEST_STRING = 2**20
_LONGEST_ARRAY = 2**22
_LARGEST_HEADER = 2**28
"""Bytes of names, values and sizes together; tokenizers of 250,000 words take some 10 MB."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_WIDE_TYPES = {0: "F32", 1: "F16", 30: "BF16"}
_NO_PARAMETERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tables that follow from hyperparameters, which transformers does not count."""
_KINDS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "phi3": "phi3"}
_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Values by name (of arrays their lengths), sizes of tensors by name, and how many numbers each type of tensor holds."""

    values: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    elements_by_type: Mapping[int, int]

    @property
    def parameters(self) -> int:
        """Numbers of all tensors that are learned."""
        return sum(math.prod(sizes) for name, sizes in self.tensors.items() if name not in _NO_PARAMETERS)


def read_gguf(path: Path) -> dict[str, Any]:
    """Return the config.json of the model that a GGUF file holds; raises ModelError for a file that is none or not whole."""
    try:
        with path.open("rb") as file:
            header = read_header(file)
    except OSError as error:
        raise ModelError("the GGUF file can't be read", given=str(path), remedy=str(error.strerror)) from None
    return config_of_header(header)


def read_header(file: BinaryIO) -> GgufHeader:
    """Return the header of an open file; raises ModelError."""
    reader = _Reader(file)
    if reader.take(4) != _MAGIC:
        raise ModelError("this is no GGUF file", allowed="a file that begins with 'GGUF'")
    version = reader.number("I")
    if version not in _VERSIONS:
        raise ModelError("GGUF of this version is not read", given=version, allowed=", ".join(map(str, _VERSIONS)))
    n_tensors = reader.count("Q", most=_MOST_TENSORS, what="tensors")
    n_values = reader.count("Q", most=_MOST_VALUES, what="values")
    values: dict[str, Any] = {}
    for _ in range(n_values):
        name = reader.text()
        values[name] = reader.value(reader.number("I"))
    tensors: dict[str, tuple[int, ...]] = {}
    by_type: Counter[int] = Counter()
    for _ in range(n_tensors):
        name = reader.text()
        rank = reader.count("I", most=_MOST_DIMS, what="dims of a tensor")
        sizes = tuple(reader.count("Q", most=2**40, what="elements of a tensor") for _ in range(rank))
        kind = reader.number("I")
        reader.number("Q")
        tensors[name] = sizes
        by_type[int(kind)] += math.prod(sizes)
    return GgufHeader(values, tensors, by_type)


def config_of_header(header: GgufHeader) -> dict[str, Any]:
    """Return the header as a config.json.

    Raises ModelError for an architecture that is not read, and for tensors that hold other numbers than the model has.
    """
    kind = header.values.get("general.architecture")
    if kind not in _KINDS:
        raise ModelError(
            "GGUF files of this architecture are not read",
            given=kind,
            allowed=", ".join(_KINDS),
            remedy="give the config.json that the file was made from",
        )
    given = {name.removeprefix(f"{kind}."): value for name, value in header.values.items() if name.startswith(f"{kind}.")}
    fields = {field: given[name] for name, field in _FIELDS.items() if name in given}
    if not fields.get("num_experts"):
        fields = {name: value for name, value in fields.items() if "expert" not in name}
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise ModelError("the GGUF file has no table of tokens", given="token_embd.weight")
    config = {
        "model_type": "mixtral" if kind == "llama" and "num_experts" in fields else _KINDS[kind],
        **fields,
        "vocab_size": table[1],
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    if kind == "llama" and "blk.0.attn_q.bias" in header.tensors:
        config["attention_bias"] = True
    widest, _ = max(header.elements_by_type.items(), key=lambda item: item[1])
    if widest not in _WIDE_TYPES:
        config["quantization_config"] = {"quant_method": "gguf", "quant_algo": f"type {widest}"}
    _check_parameters(config, header)
    return config


def _check_parameters(config: dict[str, Any], header: GgufHeader) -> None:
    from meshwright.app.models.huggingface import read_huggingface_config

    expected = read_huggingface_config(config, name="model").parameters()
    if expected != header.parameters:
        raise ModelError(
            "the file's tensors hold other numbers than a model of its sizes has",
            given=f"{header.parameters:,} in the file",
            allowed=f"{expected:,} of a {config['model_type']}",
            remedy="give the config.json that the file was made from",
        )


class _Reader:
    """Values of an open file one after another, no more bytes in all than a header may have."""

    def __init__(self, file: BinaryIO):
        self._file, self._left = file, _LARGEST_HEADER

    def take(self, size: int) -> bytes:
        """The next bytes."""
        self._left -= size
        if self._left < 0:
            raise ModelError("the header of the GGUF file is too long", allowed=f"up to {_LARGEST_HEADER} bytes")
        found = self._file.read(size)
        if len(found) < size:
            raise ModelError("the GGUF file ends within its header", remedy="download it again")
        return found

    def number(self, form: str) -> Any:
        """A number of a form of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def count(self, form: str, *, most: int, what: str) -> int:
        """A number of things, up to ``most``."""
        found = int(self.number(form))
        if found > most:
            raise ModelError(f"the GGUF file claims too many {what}", given=found, allowed=f"up to {most}")
        return found

    def text(self) -> str:
        """A string; bytes that are no UTF-8 are replaced."""
        length = self.count("Q", most=_LONGEST_STRING, what="bytes of a string")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """A value of a type; of an array its length."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_form(kind))
        inner = int(self.number("I"))
        length = self.count("Q", most=_LONGEST_ARRAY, what="elements of an array")
        if inner == _STRING:
            for _ in range(length):
                self.text()
        else:
            self.take(length * struct.calcsize(f"<{_form(inner)}"))
        return length


def _form(kind: int) -> str:
    if kind not in _SCALARS:
        raise ModelError("the GGUF file has a value of an unknown type", given=kind, allowed=", ".join(map(str, _SCALARS)))
    return _SCALARS[kind]
