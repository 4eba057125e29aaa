"""params.json, which Mistral and Meta ship beside their own weights, as the config.json of the same model.

Sources: mistral-inference (``args.py``) and vLLM's ``mistral`` config format; llama-models (``args.py``, ``model.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.models.config_fields import ConfigFields
from meshwright.costmodels.errors import ModelError

PARAMS = "params.json"

_REQUIRED = ("dim", "n_layers", "n_heads")
_SAYS_OTHER_FORMAT = ("model_type", "architectures", "text_config")
_TRANSFORMER = "transformer"
"""What some of Mistral's files call the kind of all their models."""

_DEFAULTS: Mapping[str, Any] = {
    "n_kv_heads": None,
    "head_dim": None,
    "hidden_dim": None,
    "ffn_dim_multiplier": None,
    "multiple_of": 256,
    "sliding_window": None,
    "tied_embeddings": None,
    "vocab_size": -1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 0,
    "num_shared_experts": 0,
    "q_lora_rank": None,
    "num_expert_groups": 1,
    "num_expert_groups_per_tok": 1,
    "expert_hidden_dim": None,
}
_TOWERS = ("multimodal", "vision_encoder", "vision_args")
"""What says that a model sees or hears: its text model is planned."""
_LLAMA_VOCABULARY = 32000
"""Meta's files of Llama 1 and 2 say -1: the tokenizer's vocabulary then counts, which has so many entries."""
_TIED_BELOW, _TIED_VOCABULARY = 4096, 128256
"""Llama 3.2 of 1B and 3B parameters, whose files look like those of 8B and do not say that the head is tied."""


def is_native(document: Mapping[str, Any]) -> bool:
    """Return True for a parsed params.json."""
    others = {name: document.get(name) for name in _SAYS_OTHER_FORMAT}
    says_other = any(others.values()) and others != dict.fromkeys(_SAYS_OTHER_FORMAT) | {"model_type": _TRANSFORMER}
    return all(name in document for name in _REQUIRED) and not says_other


def as_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the model that a params.json describes; of one that sees or hears, with its text model inside.

    Raises ModelError for parts that are not known, and for fields that are missing, ill-typed or out of range.
    """
    config = _text_model(document)
    if any(document.get(name) is not None for name in _TOWERS):
        config = {"model_type": "mistral3", "text_config": config}
    quantization = document.get("quantization")
    if isinstance(quantization, Mapping) and quantization.get("qformat_weight") == "fp8_e4m3":
        config["quantization_config"] = {"quant_method": "fp8"}
    return config


def _text_model(document: Mapping[str, Any]) -> dict[str, Any]:
    if document.get("moe_args") is not None:
        raise ModelError(
            f"{PARAMS}: experts of Meta's own format are not read", given="moe_args", remedy="give the config.json of the model"
        )
    fields = ConfigFields(document, PARAMS, _DEFAULTS)
    config: dict[str, Any] = {
        "hidden_size": fields.size("dim"),
        "num_hidden_layers": fields.layers("n_layers"),
        "num_attention_heads": fields.size("n_heads"),
        "num_key_value_heads": fields.optional_size("n_kv_heads") or fields.size("n_heads"),
        "head_dim": fields.optional_size("head_dim"),
        "intermediate_size": _width(fields),
        "vocab_size": _vocabulary(fields),
        "tie_word_embeddings": _is_tied(fields),
        "rms_norm_eps": document.get("norm_eps"),
        "rope_theta": document.get("rope_theta"),
    }
    experts = document.get("moe")
    if experts is not None and not isinstance(experts, Mapping):
        raise ModelError(f"{PARAMS}: 'moe' must be an object", given=experts)
    if document.get("kv_lora_rank") is not None:
        return config | _latent(fields, experts)
    if experts is not None:
        nested = ConfigFields(experts, PARAMS, _DEFAULTS)
        width = nested.optional_size("expert_hidden_dim") or config["intermediate_size"]
        routed = {"num_local_experts": nested.size("num_experts"), "num_experts_per_tok": nested.size("num_experts_per_tok")}
        return config | routed | {"model_type": "mixtral", "intermediate_size": width}
    return config | {"model_type": "mistral", "sliding_window": _window(fields)}


def _width(fields: ConfigFields) -> int:
    """As given; else two thirds of four times the width, times a factor, rounded up to a multiple (llama-models, model.py)."""
    given = fields.optional_size("hidden_dim")
    if given is not None:
        return given
    width = 8 * fields.size("dim") // 3
    factor, multiple = fields.optional_number("ffn_dim_multiplier"), fields.size("multiple_of")
    width = width if factor is None else int(factor * width)
    return -(-width // multiple) * multiple


def _vocabulary(fields: ConfigFields) -> int:
    if fields.document.get("vocab_size", -1) == -1:
        return _LLAMA_VOCABULARY
    return fields.size("vocab_size")


def _is_tied(fields: ConfigFields) -> bool:
    if fields.document.get("tied_embeddings") is not None:
        return fields.flag("tied_embeddings")
    is_meta = fields.document.get("use_scaled_rope") is not None
    return is_meta and fields.size("dim") < _TIED_BELOW and _vocabulary(fields) == _TIED_VOCABULARY


def _window(fields: ConfigFields) -> int | None:
    """One window of all layers; a list of windows, of which some layers' is none, is read as no window."""
    return None if isinstance(fields.document.get("sliding_window"), list) else fields.optional_size("sliding_window")


def _latent(fields: ConfigFields, experts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Latent attention, and experts after the first dense layers (Mistral Large 3)."""
    latent = {name: fields.size(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")} | {
        "q_lora_rank": fields.optional_size("q_lora_rank"),
        "head_dim": None,
    }
    if experts is None:
        return latent | {"model_type": "youtu"}
    nested = ConfigFields(experts, PARAMS, _DEFAULTS)
    return latent | {
        "model_type": "deepseek_v3",
        "n_routed_experts": nested.size("num_experts"),
        "num_experts_per_tok": nested.size("num_experts_per_tok"),
        "first_k_dense_replace": nested.count("first_k_dense_replace"),
        "n_shared_experts": nested.size("num_shared_experts"),
        "moe_intermediate_size": nested.size("expert_hidden_dim"),
        "n_group": nested.size("num_expert_groups"),
        "topk_group": nested.size("num_expert_groups_per_tok"),
    }
