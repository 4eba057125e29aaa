"""Headers of GGUF files: read as the config.json of their model, and refused where their claims can't be."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.models.gguf import config_of_header, read_header
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.errors import ModelError
from tests.support.gguf_files import ARRAY, KV, VOCAB, file_of, llama, tensors, text


def config(data: bytes) -> dict[str, Any]:
    return config_of_header(read_header(io.BytesIO(data)))


def test_a_header_is_the_config_of_its_model() -> None:
    read = config(file_of(llama(), tensors()))
    assert read["model_type"] == "llama" and not read["tie_word_embeddings"] and "quantization_config" not in read
    graph = read_huggingface_config(read, name="model")
    assert (graph.dims["vocab"], graph.dims["kv_heads"]) == (VOCAB, KV)
    assert graph.hyperparameters is not None and graph.hyperparameters.rotary_base == 500000.0


def test_tied_models_have_no_output() -> None:
    without = {name: sizes for name, sizes in tensors().items() if name != "output.weight"}
    assert config(file_of(llama(), without))["tie_word_embeddings"]


def test_a_llama_with_experts_is_a_mixtral() -> None:
    read = config(file_of(llama(expert_count=4, expert_used_count=2), tensors(experts=4)))
    assert read["model_type"] == "mixtral" and read["num_experts_per_tok"] == 2


def test_narrow_weights_have_to_be_named_in_the_request(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(file_of(llama(), tensors(), kind=12) + b"weights follow")
    read, name = FilesBeside(tmp_path).read_config("model.gguf")
    assert isinstance(read, dict) and read["quantization_config"]["quant_method"] == "gguf" and name == "model"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends within its header"),
        (b"GGML" + bytes(20), "no GGUF file"),
        (file_of({}, {}, version=1), "version is not read"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "claims too many tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "claims too many values"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "claims too many bytes of a string"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", ARRAY, 0, 2**60), "claims too many elements"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 9), "unknown type; given: 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "unknown type; given: 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("a") + struct.pack("<I", 9), "claims too many dims"),
        (file_of(llama(), tensors())[:-30], "ends within its header"),
        (file_of({"general.architecture": "whale"}, tensors()), "given: 'whale'; allowed: llama"),
        (file_of(llama(), {"output.weight": (1, 2)}), "no table of tokens"),
        (file_of(llama(block_count=3), tensors()), "the file's tensors hold other numbers"),
        (file_of(llama(block_count="two"), tensors()), "'num_hidden_layers' has the wrong type"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_hostile_headers_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ModelError) as refused:
        config(data)
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be read"):
        FilesBeside(tmp_path).read_config("nowhere.gguf")
