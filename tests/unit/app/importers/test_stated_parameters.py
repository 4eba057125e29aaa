"""A decoder that is assumed is compared with the parameters that files or names state, and refused beyond a twentieth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.models.stated_parameters import INDEX, StatedParameters, stated_by_files, stated_by_names
from meshwright.app.requests.document import ModelSource
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.models import NO_REGISTRY, read_source
from meshwright.costmodels.errors import ModelError

SIZES = {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 1000}
UNKNOWN: dict[str, Any] = {"model_type": "mystery", "torch_dtype": "bfloat16", **SIZES}
PARAMETERS = read_huggingface_config({"model_type": "llama", **SIZES}, name="model").parameters()


def index(folder: Path, **metadata: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": {}}))


def shard(folder: Path, name: str, *shapes: list[int], dtype: str = "BF16") -> None:
    header = json.dumps({str(i): {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for i, shape in enumerate(shapes)})
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header.encode())


def read(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps(UNKNOWN))
    source = ModelSource(huggingface=".", assume_decoder=True)
    return read_source(source, FilesBeside(folder), NO_REGISTRY, Entry.FOREIGN).graph.name


def test_nothing_that_states_a_size_is_said_in_the_name() -> None:
    graph = read_huggingface_config(UNKNOWN, name="model", assume_decoder=True)
    assert graph.name == "model (assumed decoder of unstated size)"


@pytest.mark.parametrize("share", [0.96, 1.0, 1.04])
def test_what_files_state_is_said_to_agree(tmp_path: Path, share: float) -> None:
    index(tmp_path, total_parameters=round(PARAMETERS * share))
    assert read(tmp_path) == f"{tmp_path.name} (assumed decoder)"


@pytest.mark.parametrize("share", [0.93, 1.07, 5.8])
def test_what_files_state_otherwise_refuses_the_assumption(tmp_path: Path, share: float) -> None:
    index(tmp_path, total_size=2 * round(PARAMETERS * share))
    with pytest.raises(DocumentError, match="its parameters are others than stated"):
        read(tmp_path)


def test_headers_go_before_bytes_and_after_a_count(tmp_path: Path) -> None:
    index(tmp_path, total_size=80)
    assert stated_by_files(tmp_path, UNKNOWN) == StatedParameters(40, 40, f"'total_size' of {INDEX}")
    shard(tmp_path, "model-1.safetensors", [3, 4], [5])
    shard(tmp_path, "model-2.safetensors", [2], [])
    assert stated_by_files(tmp_path, UNKNOWN) == StatedParameters(20, 20, "the headers of its files")
    index(tmp_path, total_parameters=30)
    assert stated_by_files(tmp_path, UNKNOWN) == StatedParameters(30, 30, f"'total_parameters' of {INDEX}")


def test_packed_weights_are_not_counted(tmp_path: Path) -> None:
    shard(tmp_path, "model.safetensors", [3, 4])
    assert stated_by_files(tmp_path, UNKNOWN | {"quantization_config": {"quant_method": "awq"}}) is None


@pytest.mark.parametrize(
    "text", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", (2**60).to_bytes(8, "little"), b"\x01\0\0\0\0\0\0\0{"]
)
def test_files_that_are_none_state_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(text)
    (tmp_path / INDEX).write_bytes(text)
    assert stated_by_files(tmp_path, UNKNOWN) is None


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("org/Mystery-7B-Instruct", 6.5e9, 7.5e9),
        ("mystery_1.5b", 1.45e9, 1.55e9),
        ("Mystery-30B-A3B", 29.5e9, 30.5e9),
        ("mystery-350M", 349.5e6, 350.5e6),
        ("Mystery-1T", 0.5e12, 1.5e12),
    ],
)
def test_a_name_states_a_rounded_size(name: str, least: float, most: float) -> None:
    stated = stated_by_names((None, name))
    assert stated is not None
    assert (stated.least, stated.most) == pytest.approx((least, most))


@pytest.mark.parametrize("name", ["Mystery-8x7B", "mystery-v2.5", "Mystery-A3B", "b7", "7bit", "model"])
def test_a_name_without_a_size_states_nothing(name: str) -> None:
    assert stated_by_names((name,)) is None


def test_a_size_in_the_name_refuses_another_model() -> None:
    with pytest.raises(ModelError, match=r"the name 'Mystery-7B' says 7\.00 billion"):
        read_huggingface_config(UNKNOWN, name="Mystery-7B", assume_decoder=True)
