"""Ids of the Hugging Face Hub whose ``config.json`` has the shape of a catalogue model, and the table of more such models.

A row of ``listed.csv`` is the sizes of a config.json with the parameters that they make, ``more`` its other fields, and the ids
that have these sizes; of a row without sizes the catalogue has a file. An id behind which a number stands (``id@tokens``) has
other positions than the row. ``decoders`` are ids of models of text and images with the sizes of their text decoder.

Sources: the published config.json files, of which public repositories repeat many (Lightning-AI/litgpt, mlc-ai/mlc-llm,
cli99/llm-analysis). Each row's parameters are those of its checkpoint, or of its card, to 0.2%.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

_COUNTS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class ListedId:
    """An id of the Hub.

    name          the catalogue's name of its sizes
    positions     tokens of its longest sequence, where they are not that model's
    is_decoder    whether the sizes are those of its text decoder alone
    """

    text: str
    name: str
    positions: int | None
    is_decoder: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """The table: config.json documents and parameters by name, and ids."""

    documents: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, int]
    ids: tuple[ListedId, ...]


def _read() -> Listed:
    documents: dict[str, Mapping[str, Any]] = {}
    parameters: dict[str, int] = {}
    ids: list[ListedId] = []
    with files("meshwright.app.models.catalog").joinpath("listed.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ids.extend(_ids(row["name"], row["ids"], is_decoder=False))
            ids.extend(_ids(row["name"], row["decoders"], is_decoder=True))
            if row["model_type"]:
                documents[row["name"]] = _document(row)
                parameters[row["name"]] = int(row["parameters"])
    return Listed(MappingProxyType(documents), MappingProxyType(parameters), tuple(ids))


def _document(row: Mapping[str, str]) -> Mapping[str, Any]:
    sizes = {name: int(row[name]) for name in _COUNTS if row[name]}
    more = json.loads(row["more"]) if row["more"] else {}
    return {"model_type": row["model_type"], **sizes, "tie_word_embeddings": row["tie_word_embeddings"] == "true", **more}


def _ids(name: str, texts: str, *, is_decoder: bool) -> Iterator[ListedId]:
    for text in texts.split():
        given, _, positions = text.partition("@")
        yield ListedId(given, name, int(positions) if positions else None, is_decoder)


LISTED = _read()
"""The table as it is shipped."""


_WITH_FILES: Mapping[str, str] = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama-3.1-70b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "qwen2.5-1.5b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "qwen2.5-14b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "qwen2.5-32b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-Base": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek-v3.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4-flash",
    "deepseek-ai/DeepSeek-V4-Pro": "deepseek-v4-pro",
    "google/gemma-2-27b": "gemma-2-27b",
    "google/gemma-2-27b-it": "gemma-2-27b",
    "google/gemma-2-9b": "gemma-2-9b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "google/gemma-3-12b-it": "gemma-3-12b",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "google/gemma-4-26B-A4B": "gemma-4-26b-a4b",
    "google/gemma-4-26B-A4B-it": "gemma-4-26b-a4b",
    "google/gemma-4-31B-it": "gemma-4-31b",
    "meta-llama/Llama-2-13b-chat-hf": "llama-2-13b",
    "meta-llama/Llama-2-13b-hf": "llama-2-13b",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-chat-hf": "llama-2-70b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-FP8": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct-FP8": "llama-3.1-405b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b",
    "meta-llama/Llama-3.2-1B-Instruct": "llama-3.2-1b",
    "meta-llama/Llama-3.2-3B": "llama-3.2-3b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-4-Maverick-17B-128E": "llama-4-maverick",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "meta-llama/Llama-4-Scout-17B-16E": "llama-4-scout",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "meta-llama/Meta-Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-405B-FP8": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-405B-Instruct-FP8": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "microsoft/phi-4": "phi-4",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "MiniMaxAI/MiniMax-M2.7": "minimax-m2.5",
    "MiniMaxAI/MiniMax-M3": "minimax-m3",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mistral-Nemo-Base-2407": "mistral-nemo-12b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "mistralai/Mistral-Small-24B-Base-2501": "mistral-small-24b",
    "mistralai/Mistral-Small-24B-Instruct-2501": "mistral-small-24b",
    "mistralai/Mixtral-8x22B-v0.1": "mixtral-8x22b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "moonshotai/Kimi-K2-Base": "kimi-k2",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "moonshotai/Kimi-K2.6": "kimi-k2",
    "moonshotai/Kimi-K2.7-Code": "kimi-k2",
    "nvidia/Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano-30b-a3b",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "nemotron-3-super-120b-a12b",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "nemotron-3-ultra-550b-a55b",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "nemotron-3-nano-30b-a3b",
    "openai-community/gpt2-xl": "gpt2-xl",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-14B-Instruct": "qwen2.5-14b",
    "Qwen/Qwen2.5-32B-Instruct": "qwen2.5-32b",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "Qwen/Qwen3-1.7B": "qwen3-1.7b",
    "Qwen/Qwen3-14B": "qwen3-14b",
    "Qwen/Qwen3-14B-FP8": "qwen3-14b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-30B-A3B-FP8": "qwen3-30b-a3b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-32B-FP8": "qwen3-32b",
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": "qwen3-32b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-8B-FP8": "qwen3-8b",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "qwen3-coder-480b-a35b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b",
    "Qwen/Qwen3-VL-235B-A22B-Instruct": "qwen3-235b-a22b",
    "Qwen/Qwen3-VL-2B-Instruct": "qwen3-1.7b",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3-30b-a3b",
    "Qwen/Qwen3-VL-32B-Instruct": "qwen3-32b",
    "Qwen/Qwen3-VL-32B-Thinking": "qwen3-32b",
    "Qwen/Qwen3-VL-4B-Instruct": "qwen3-4b",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-8b",
    "Qwen/Qwen3.5-122B-A10B": "qwen3.5-122b-a10b",
    "Qwen/Qwen3.5-27B": "qwen3.5-27b",
    "Qwen/Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "Qwen/Qwen3.6-27B": "qwen3.5-27b",
    "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
    "Qwen/QwQ-32B": "qwen2.5-32b",
    "XiaomiMiMo/MiMo-V2-Flash": "mimo-v2-flash",
    "zai-org/GLM-4.5": "glm-4.5",
    "zai-org/GLM-4.5-Air": "glm-4.5-air",
    "zai-org/GLM-4.6": "glm-4.5",
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5-FP8": "glm-5",
    "zai-org/GLM-5.1": "glm-5",
    "zai-org/GLM-5.1-FP8": "glm-5",
    "zai-org/GLM-5.2": "glm-5.2",
    "zai-org/GLM-5.2-FP8": "glm-5.2",
}
CATALOGUE_NAMES: Mapping[str, str] = {**_WITH_FILES, **{each.text: each.name for each in LISTED.ids}}
"""The catalogue name of each id. Sizes are those of the catalogue's file or table, the same on every machine."""

# Kimi-K2-Thinking stores its experts alone in 4 bits, in groups of 32; K2.5 has "the same native int4 quantization method"
# (model cards).
_KIMI_INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}},
    "ignore": ["lm_head", "re:.*self_attn.*"],
}
OTHER_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "moonshotai/Kimi-K2-Thinking": _KIMI_INT4,
    "moonshotai/Kimi-K2.5": _KIMI_INT4,
    # Qwen's own fp8 checkpoints have blocks of 128 x 128, as those of DeepSeek-V3.
    **{
        name: {"quant_method": "fp8", "weight_block_size": [128, 128]}
        for name in CATALOGUE_NAMES
        if name.endswith("-FP8") and not name.startswith("meta-llama/")
    },
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": {"quant_method": "fp8"},
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    # Meta's leave attention in 16 bits, and the first layer and the last.
    **{
        name: {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}
        for name in CATALOGUE_NAMES
        if name.endswith("-FP8") and name.startswith("meta-llama/")
    },
}
"""The ``quantization_config`` of ids whose weights are stored in another format than those of the catalogue's file."""

OTHER_HYPERPARAMETERS = frozenset(
    {
        *(each.text for each in LISTED.ids if each.positions is not None),
        "MiniMaxAI/MiniMax-M2.7",
        "moonshotai/Kimi-K2.6",
        "moonshotai/Kimi-K2.7-Code",
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "Qwen/Qwen3-VL-2B-Instruct",
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "Qwen/Qwen3-VL-32B-Instruct",
        "Qwen/Qwen3-VL-32B-Thinking",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "moonshotai/Kimi-K2-Thinking",
        "moonshotai/Kimi-K2.5",
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/QwQ-32B",
        "zai-org/GLM-4.6",
    }
)
"""Ids with the catalogue model's sizes, whose rotary base or scaling is another or not known: made for longer sequences, or
from another base model."""

TEXT_DECODERS = frozenset(
    (
        *(name for name in _WITH_FILES if name.startswith("Qwen/Qwen3-VL-")),
        *(each.text for each in LISTED.ids if each.is_decoder),
    )
)
"""Ids of models of text and images, of which the catalogue has the text decoder."""

OTHER_POSITIONS: Mapping[str, int] = {
    **{each.text: each.positions for each in LISTED.ids if each.positions is not None},
    **{f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size}": 131072 for size in ("1.5B", "7B", "14B", "32B")},
    "moonshotai/Kimi-K2-Thinking": 262144,
    "moonshotai/Kimi-K2.5": 262144,
    "Qwen/Qwen3-235B-A22B-Instruct-2507": 262144,
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": 262144,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 262144,
    "Qwen/QwQ-32B": 40960,
    "zai-org/GLM-4.6": 202752,
    "MiniMaxAI/MiniMax-M2.7": 204800,
    "moonshotai/Kimi-K2.6": 262144,
    "moonshotai/Kimi-K2.7-Code": 262144,
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 1048576,
    "Qwen/Qwen3-VL-235B-A22B-Instruct": 262144,
    "Qwen/Qwen3-VL-2B-Instruct": 262144,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 262144,
    "Qwen/Qwen3-VL-32B-Instruct": 262144,
    "Qwen/Qwen3-VL-32B-Thinking": 262144,
    "Qwen/Qwen3-VL-4B-Instruct": 262144,
    "Qwen/Qwen3-VL-8B-Instruct": 262144,
}
"""Tokens of the longest sequence of these (``max_position_embeddings`` of their config.json)."""


def letters(name: str) -> str:
    """Return a name with what people write in several ways in one: case, blanks, underscores."""
    return re.sub(r"[-_ ]+", "-", name.casefold())


def catalogue_name_of(model_id: str) -> str | None:
    """Return the catalogue name of a Hub id, letter case aside; None where the catalogue has no such model."""
    return _BY_FOLDED.get(model_id.casefold())


def id_as_written(model_id: str) -> str:
    """Return a Hub id of the catalogue as the Hub writes it; any other as it is."""
    return next((known for known in CATALOGUE_NAMES if known.casefold() == model_id.casefold()), model_id)


_BY_FOLDED = {model_id.casefold(): name for model_id, name in CATALOGUE_NAMES.items()}
