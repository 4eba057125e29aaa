"""Models of several parts, and kinds without a class in transformers, by the model that they are."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import TOP_K

QWEN3: dict[str, Any] = {"model_type": "qwen3", "num_hidden_layers": 2}
SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "vocab_size": 1000,
}

HOLDS_QWEN3: dict[str, dict[str, Any]] = {
    "llm_config": {"model_type": "internvl_chat", "llm_config": QWEN3, "vision_config": {}},
    "llm_config by its class": {
        "model_type": "internvl_chat",
        "llm_config": {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2},
    },
    "language_config": {"model_type": "mystery_vl", "language_config": QWEN3},
    "text_config": {"model_type": "voxtral", "text_config": QWEN3, "audio_config": {}},
    "no kind without": {"architectures": ["MysteryVL"], "text_config": QWEN3},
    "thinker": {"model_type": "mystery_omni", "thinker_config": {"model_type": "mystery_thinker", "text_config": QWEN3}},
    "thinker without a kind": {"model_type": "mystery_omni", "thinker_config": {"text_config": QWEN3}},
}


@pytest.mark.parametrize("case", HOLDS_QWEN3)
def test_the_text_model_inside_is_read(case: str) -> None:
    read = read_huggingface_config(HOLDS_QWEN3[case], name="model")
    assert read.name == "model (text decoder)"
    assert read.blocks == read_huggingface_config(QWEN3, name="model").blocks


def test_what_is_nested_deeper_than_any_model_is_refused() -> None:
    document: dict[str, Any] = QWEN3
    for _ in range(50):
        document = {"model_type": "mystery", "text_config": document}
    with pytest.raises(ModelError, match="unknown model_type"):
        read_huggingface_config(document, name="model")


@pytest.mark.parametrize(
    "document",
    [
        {"model_type": "chatglm", "vision_config": {"hidden_size": 1792}},
        {"model_type": "qwen", "visual": {"width": 1664}},
    ],
)
def test_of_a_kind_that_sees_by_a_field_the_text_decoder_is_read(document: dict[str, Any]) -> None:
    assert read_huggingface_config(document, name="model").name == "model (text decoder)"
    assert read_huggingface_config({"model_type": document["model_type"]}, name="model").name == "model"


def test_a_deepseek_v2_without_latent_attention_has_llamas() -> None:
    text = {"model_type": "deepseek_v2", "use_mla": False, "num_hidden_layers": 2, "q_lora_rank": None}
    read = read_huggingface_config({"model_type": "deepseek_vl_v2", "language_config": text}, name="model")
    assert read.blocks == read_huggingface_config({"model_type": "deepseek", "num_hidden_layers": 2}, name="model").blocks


# Kinds without a class in transformers, and the kind that has their layers under other names of fields.
SAME_LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "internlm2": ({"model_type": "internlm2", "bias": True, **SIZES}, {"model_type": "llama", "attention_bias": True, **SIZES}),
    "internlm": ({"model_type": "internlm", "bias": False, **SIZES}, {"model_type": "llama", **SIZES}),
    "Yi": ({"model_type": "Yi", **SIZES}, {"model_type": "llama", **SIZES}),
    "xverse": ({"model_type": "xverse", **SIZES}, {"model_type": "llama", **SIZES}),
    "aquila": ({"model_type": "aquila", **SIZES}, {"model_type": "llama", **SIZES}),
    "minicpm": ({"model_type": "minicpm", **SIZES}, {"model_type": "llama", "tie_word_embeddings": True, **SIZES}),
    "baichuan": (
        {"model_type": "baichuan", "hidden_size": 4096, "vocab_size": 1000},
        {"model_type": "llama", "vocab_size": 1000},
    ),
    "qwen": (
        {"model_type": "qwen", **SIZES, "intermediate_size": 400, "kv_channels": 16},
        {"model_type": "qwen2", "num_key_value_heads": 6, **SIZES},
    ),
    "chatglm": (
        {
            "model_type": "chatglm",
            "hidden_size": 96,
            "ffn_hidden_size": 200,
            "num_layers": 4,
            "num_attention_heads": 6,
            "padded_vocab_size": 1000,
            "kv_channels": 20,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "add_qkv_bias": True,
        },
        {"model_type": "glm", **SIZES, "num_key_value_heads": 2, "head_dim": 20},
    ),
    "exaone": (
        {"model_type": "exaone", "num_layers": 3, "activation_function": "silu", "num_attention_heads": 6, "hidden_size": 96},
        {**SIZES, "model_type": "llama", "num_hidden_layers": 3, "intermediate_size": 384, "tie_word_embeddings": True}
        | {"vocab_size": 102400},
    ),
    "hunyuan without experts": (
        {"model_type": "hunyuan", **SIZES, "attention_head_dim": 16},
        {"model_type": "hunyuan_v1_dense", **SIZES, "head_dim": 16},
    ),
    "hunyuan with experts": (
        {"model_type": "hunyuan", **SIZES, "num_experts": 4, "moe_topk": [2] * 4, "attention_head_dim": 16},
        {"model_type": "hunyuan_v1_moe", **SIZES, "num_experts": 4, "moe_topk": 2, "head_dim": 16},
    ),
    "bailing": (
        {"model_type": "bailing_moe_v2", **SIZES, "num_key_value_heads": 6, "use_qk_norm": True, "num_experts": 8}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 40},
        {"model_type": "qwen3_moe", **SIZES, "num_key_value_heads": 6, "num_experts": 8}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 40},
    ),
    "minimax_text_01": (
        {"model_type": "minimax_text_01", **SIZES, "num_key_value_heads": 2, "attn_type_list": [0, 1, 0, 1]},
        {"model_type": "minimax", **SIZES, "num_key_value_heads": 2}
        | {"layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "exaone4 by letters": (
        {"model_type": "exaone4_5_text", **SIZES, "sliding_window_pattern": "LLLG"},
        {"model_type": "exaone4", **SIZES, "sliding_window_pattern": 4},
    ),
}


@pytest.mark.parametrize("case", SAME_LAYERS)
def test_a_kind_counts_as_the_one_with_the_same_layers(case: str) -> None:
    ours, other = (read_huggingface_config(document, name="model") for document in SAME_LAYERS[case])
    assert ours.parameters() == other.parameters()
    assert ours.active_parameters() == other.active_parameters()
    assert [(run.repeat) for run in ours.chain] == [(run.repeat) for run in other.chain]


def test_experts_that_do_nothing_have_a_column_of_the_router_alone() -> None:
    plain = read_huggingface_config({"model_type": "longcat_flash", "zero_expert_num": 0}, name="model")
    idle = read_huggingface_config({"model_type": "longcat_flash", "zero_expert_num": 256}, name="model")
    assert idle.parameters() - plain.parameters() == 28 * 256 * 6144
    assert (plain.dims[TOP_K], idle.dims[TOP_K]) == (12, 8)
    by_both = {"model_type": "longcat_flash", "num_hidden_layers": 56}
    assert read_huggingface_config(by_both, name="model").blocks == idle.blocks


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "first ChatGLM": ({"model_type": "chatglm", "inner_hidden_size": 16384}, "layers of the first ChatGLM"),
    "odd halves": ({"model_type": "qwen", "intermediate_size": 11009}, "counts two equal halves"),
    "layers share keys": ({"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}, "cross-layer attention"),
    "layers differ": ({"model_type": "hunyuan", "moe_topk": [1, 2]}, "layers that differ in 'moe_topk'"),
    "unknown gate": ({"model_type": "kimi_linear", "mla_use_output_gate": True}, "'mla_use_output_gate' is not supported"),
    "narrow experts": ({"model_type": "kimi_linear", "routed_expert_hidden_size": 8}, "experts of another width"),
    "linear fields of a list": ({"model_type": "kimi_linear", "linear_attn_config": []}, "must be an object"),
    "letters": ({"model_type": "exaone4", "sliding_window_pattern": "GL"}, "'sliding_window_pattern' is not known"),
    "experts of a list": ({"model_type": "dbrx", "ffn_config": [1]}, "'ffn_config' must be an object"),
    "blocks of the RG-LRU": ({"model_type": "recurrent_gemma", "lru_width": 2561}, "'lru_width' must be a multiple of 10"),
    "a classifier of two stacks": (
        {"model_type": "t5", "architectures": ["T5ForSequenceClassification"]},
        "given: 'T5ForSequenceClassification'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        read_huggingface_config(document, name="model")
    assert reason in str(refusal.value)
