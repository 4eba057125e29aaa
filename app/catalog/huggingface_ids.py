"""Ids of the Hugging Face Hub whose ``config.json`` has the shape of a catalogue model."""

from __future__ import annotations

from collections.abc import Mapping

CATALOGUE_NAMES: Mapping[str, str] = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-Base": "deepseek-v3",
    "google/gemma-2-9b": "gemma-2-9b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "meta-llama/Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-4-Maverick-17B-128E": "llama-4-maverick",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "meta-llama/Llama-4-Scout-17B-16E": "llama-4-scout",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "openai-community/gpt2-xl": "gpt2-xl",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-8B": "qwen3-8b",
}
"""The catalogue name of each id. Sizes are those of the catalogue's file, the same on every machine."""


def catalogue_name_of(model_id: str) -> str | None:
    """Return the catalogue name of a Hub id, letter case aside; None where the catalogue has no such model."""
    return _BY_FOLDED.get(model_id.casefold())


def id_as_written(model_id: str) -> str:
    """Return a Hub id of the catalogue as the Hub writes it; any other as it is."""
    return next((known for known in CATALOGUE_NAMES if known.casefold() == model_id.casefold()), model_id)


_BY_FOLDED = {model_id.casefold(): name for model_id, name in CATALOGUE_NAMES.items()}
