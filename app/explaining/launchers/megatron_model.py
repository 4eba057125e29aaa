"""The model of a Megatron-LM command, from its sizes, as the config.json of the family that has such layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.catalog import model, model_names
from meshwright.app.catalog.huggingface_ids import catalogue_name_in_words
from meshwright.app.launch_flags.megatron_lm import MegatronFlags
from meshwright.costmodels.model.dims import VOCAB

_VOCABULARIES = {"gpt2bpetokenizer": 50257, "gptsentencepiecetokenizer": 32000, "llama2tokenizer": 32000}
"""Tokens of the tokenizers that are named by their type: GPT-2's merges, Llama-2's pieces."""
_OF_MERGES = "GPT2BPETokenizer"
"""The tokenizer of a file of merges."""
_NULL_TOKENIZER = "nulltokenizer"
"""The tokenizer that adds one token to the size that it is given (megatron/training/tokenizer)."""


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A config.json, None where the flags do not say enough, and what was taken for granted."""

    config: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()


def named_config(flags: MegatronFlags) -> NamedConfig:
    """Return the config of the model that the flags describe."""
    vocab, notes = _vocabulary(flags)
    layers, hidden, heads = flags.num_layers, flags.hidden_size, flags.num_attention_heads
    if layers is None or hidden is None or heads is None or vocab is None or _is_strange(flags):
        return NamedConfig(None, notes)
    family = _family(flags)
    ffn = flags.ffn_hidden_size or 4 * hidden
    if family == "gpt2":
        positions = flags.max_position_embeddings or flags.seq_length or 1024
        own: dict[str, Any] = {"n_inner": ffn, "max_position_embeddings": positions}
    else:
        own = {
            "intermediate_size": ffn,
            "num_key_value_heads": (flags.num_query_groups or 1) if flags.group_query_attention else heads,
            "head_dim": flags.kv_channels or hidden // heads,
        }
    config = {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "tie_word_embeddings": not flags.untie_embeddings_and_output_weights,
        **own,
        **_experts(flags, family, ffn),
    }
    return NamedConfig(config, (*notes, f"the model is taken for one of the {family} family, of the command's sizes"))


def _is_strange(flags: MegatronFlags) -> bool:
    """True for a model that no family here has by its flags alone."""
    uneven = flags.moe_layer_freq not in (None, "1")
    gated = flags.swiglu
    return (
        flags.multi_latent_attention
        or flags.moe_shared_expert_intermediate_size is not None
        or uneven
        or flags.window_size is not None
        or flags.squared_relu
        or (flags.num_experts is not None and not gated)
        or (not gated and flags.group_query_attention)
    )


def _family(flags: MegatronFlags) -> str:
    if not flags.swiglu:
        return "gpt2"
    if flags.num_experts is not None:
        return "qwen3_moe" if flags.qk_layernorm else "mixtral"
    if flags.qk_layernorm:
        return "qwen3"
    return "qwen2" if flags.add_qkv_bias else "llama"


def _experts(flags: MegatronFlags, family: str, ffn: int) -> dict[str, Any]:
    if flags.num_experts is None:
        return {}
    width = flags.moe_ffn_hidden_size or ffn
    # Megatron-LM gives a token two experts unless told (--moe-router-topk).
    chosen = {"num_experts_per_tok": flags.moe_router_topk or 2}
    if family == "mixtral":
        return {"num_local_experts": flags.num_experts, "intermediate_size": width, **chosen}
    return {"num_experts": flags.num_experts, "moe_intermediate_size": width, **chosen}


def _vocabulary(flags: MegatronFlags) -> tuple[int | None, tuple[str, ...]]:
    """Tokens of the vocabulary, and what was taken for granted."""
    # Until 2024 files of merges alone meant GPT-2's tokenizer.
    kind = (flags.tokenizer_type or (_OF_MERGES if flags.merge_file else "")).casefold()
    if flags.vocab_size is not None:
        return flags.vocab_size + (kind == _NULL_TOKENIZER), ()
    named = flags.tokenizer_model or ""
    known = catalogue_name_in_words(named, model_names()) if "/" in named and "$" not in named else None
    if known is not None:
        return model(known).dims[VOCAB], (f"the vocabulary is that of {known}, by the tokenizer",)
    if kind in _VOCABULARIES:
        return _VOCABULARIES[kind], (
            f"the vocabulary of {flags.tokenizer_type or _OF_MERGES} has {_VOCABULARIES[kind]:,} tokens",
        )
    return None, ()
