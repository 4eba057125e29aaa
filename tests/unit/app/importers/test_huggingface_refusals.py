"""config.json files that can't be planned are refused with a ModelError that names what is wrong and what would do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.models.catalog import model, model_names
from meshwright.app.models.huggingface import read_huggingface_config, supported_model_types
from meshwright.costmodels.errors import NAMES_SHOWN, ModelError

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model_type": ({"model_type": "mystery"}, "unknown model_type; given: 'mystery'; allowed: "),
    "model_type of a number": ({"model_type": 3}, "'model_type' must be a string"),
    "neither model_type nor architectures": ({"hidden_size": 8}, "must name its 'model_type'"),
    "unknown architecture alone": ({"architectures": ["Mystery"]}, "unknown architecture; given: 'Mystery'"),
    "architecture of another task": (
        {"model_type": "llama", "architectures": ["LlamaForQuestionAnswering"]},
        "given: 'LlamaForQuestionAnswering'; allowed: LlamaForCausalLM, LlamaForSequenceClassification",
    ),
    "classifier without labels": (
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "num_labels": 0},
        "'num_labels' is out of range; given: 0",
    ),
    "quantisation file": ({"producer": {"name": "modelopt"}, "quantization": {}}, "a file of quantisation (hf_quant_config"),
    "diffusion part": ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.31.0"}, "part of a diffusion pipeline"),
    "adapter": ({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}, "of the base model, Qwen/Qwen3-8B"),
    "tokenizer": ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 8192}, "the configuration of a tokenizer"),
    "index of weights": ({"metadata": {}, "weight_map": {}}, "the index of a checkpoint's files"),
    "shared keys and values": (
        {"model_type": "gemma4_text", "num_kv_shared_layers": 2},
        "'num_kv_shared_layers' is not supported",
    ),
    "other heads under a window": (
        {"model_type": "mimo_v2_flash", "swa_head_dim": 64},
        "given: {'swa_head_dim': 64}; allowed: 192",
    ),
    "layers not chosen": ({"model_type": "nemotron-nas", "block_configs": [{}], "num_hidden_layers": 2}, "for each layer"),
    "a chosen layer without parts": (
        {"model_type": "nemotron-nas", "block_configs": [{}], "num_hidden_layers": 1, "hidden_size": 512},
        "must have an object 'attention'",
    ),
    "architectures of a string": ({"model_type": "llama", "architectures": "LlamaForCausalLM"}, "'architectures'"),
    "negative": ({"model_type": "llama", "hidden_size": -1}, "'hidden_size' is out of range; given: -1"),
    "zero": ({"model_type": "llama", "num_hidden_layers": 0}, "'num_hidden_layers' is out of range; given: 0"),
    "too many layers": ({"model_type": "llama", "num_hidden_layers": 10**8}, "'num_hidden_layers' is out of range"),
    "huge": ({"model_type": "llama", "vocab_size": 10**30}, "'vocab_size' is out of range"),
    "text": ({"model_type": "llama", "hidden_size": "4096"}, "'hidden_size' has the wrong type; given: '4096'"),
    "float": ({"model_type": "llama", "hidden_size": 4096.0}, "'hidden_size' has the wrong type"),
    "true": ({"model_type": "llama", "hidden_size": True}, "'hidden_size' has the wrong type"),
    "null": ({"model_type": "llama", "hidden_size": None}, "'hidden_size' has the wrong type"),
    "flag of a number": ({"model_type": "llama", "attention_bias": 1}, "'attention_bias' has the wrong type"),
    "unknown activation": ({"model_type": "llama", "hidden_act": "mystery"}, "unknown activation function"),
    "alias in the file's words": ({"model_type": "gpt2", "n_embd": -1}, "'n_embd' is out of range"),
    "heads that do not divide": ({"model_type": "llama", "hidden_size": 100}, "multiple of num_attention_heads"),
    "key/value heads that do not divide": ({"model_type": "llama", "num_key_value_heads": 5}, "multiple of key/value heads"),
    "too few layer types": (
        {"model_type": "gemma2", "layer_types": ["full_attention"]},
        "'layer_types' must have an entry for each layer; given: 1; allowed: 26",
    ),
    "unknown layer type": (
        {"model_type": "gemma2", "num_hidden_layers": 1, "layer_types": ["mystery"]},
        "'layer_types' has unknown entries; given: ['mystery']",
    ),
    "cross attention": ({"model_type": "gpt2", "add_cross_attention": True}, "'add_cross_attention' is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        read_huggingface_config(document, name="model")
    assert reason in str(refusal.value)


def test_unknown_model_type_lists_every_supported_one() -> None:
    with pytest.raises(ModelError) as refusal:
        read_huggingface_config({"model_type": "mystery"}, name="model")
    assert all(model_type in str(refusal.value) for model_type in supported_model_types())


def test_unknown_model_type_is_told_the_nearest_one() -> None:
    with pytest.raises(ModelError, match="did you mean 'glm4_moe'"):
        read_huggingface_config({"model_type": "glm4_mo"}, name="model")


def test_of_an_unknown_type_the_text_model_that_it_names_is_read() -> None:
    text = {"model_type": "qwen3", "num_hidden_layers": 2}
    model = read_huggingface_config({"model_type": "mystery_vl", "text_config": text}, name="model")
    assert model.name == "model (text decoder)"
    assert model.blocks == read_huggingface_config(text, name="model").blocks


def test_model_type_may_follow_from_the_architecture() -> None:
    by_name = read_huggingface_config({"architectures": ["Qwen3ForCausalLM"]}, name="model")
    assert by_name == read_huggingface_config({"model_type": "qwen3"}, name="model")


def test_quantisation_and_dtype_do_not_change_the_graph() -> None:
    extra = {"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "bfloat16", "dtype": "float8"}
    plain = read_huggingface_config({"model_type": "qwen3"}, name="model")
    assert read_huggingface_config({"model_type": "qwen3", **extra}, name="model") == plain


def test_catalogue_lists_models_when_a_name_is_unknown() -> None:
    with pytest.raises(ModelError) as refusal:
        model("mystral")
    named = [name for name in model_names() if name in str(refusal.value)]
    assert "mistral-7b" in named
    assert f"and {len(model_names()) - NAMES_SHOWN} more" in str(refusal.value)


_FIELDS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "layer_types")
_ANYTHING = st.none() | st.booleans() | st.integers() | st.integers(1, 64) | st.text() | st.lists(st.text(), max_size=2)


@given(model_type=st.sampled_from(supported_model_types()), values=st.dictionaries(st.sampled_from(_FIELDS), _ANYTHING))
@settings(deadline=None)
def test_any_values_give_a_graph_or_a_model_error(model_type: str, values: dict[str, Any]) -> None:
    try:
        graph = read_huggingface_config({"model_type": model_type, **values}, name="model")
    except ModelError:
        return
    assert graph.parameters() > 0
