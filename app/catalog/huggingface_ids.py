"""Ids of the Hugging Face Hub whose ``config.json`` has the shape of a catalogue model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CATALOGUE_NAMES: Mapping[str, str] = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-Base": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "google/gemma-2-9b": "gemma-2-9b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "meta-llama/Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-4-Maverick-17B-128E": "llama-4-maverick",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "meta-llama/Llama-4-Scout-17B-16E": "llama-4-scout",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "moonshotai/Kimi-K2-Base": "kimi-k2",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "openai-community/gpt2-xl": "gpt2-xl",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "zai-org/GLM-5": "glm-5",
}
"""The catalogue name of each id. Sizes are those of the catalogue's file, the same on every machine."""


_FORMATS = re.compile(r"[-_ ](?:fp8|nvfp4|mxfp4|fp4|int4|int8|w4a16|w8a8|awq|gptq|bf16)\b.*$", re.IGNORECASE)
"""Ends of the names of quantised copies of a model."""

_OTHERS_WRITE = {"llama 4 maverick": "llama-4-maverick", "llama 4 scout": "llama-4-scout", "llama 3.3 70b": "llama-3.1-70b"}
"""Names in tables of benchmarks that are shorter than an id and no name of the catalogue."""


def catalogue_name_in_words(text: str, names: Iterable[str]) -> str | None:
    """Return the one of the catalogue's ``names`` that a table means by a model, None where it means no model of it.

    A table may write the name, a Hub id, or the id's last part under any organisation, with blanks for hyphens and with the
    number format of a quantised copy.
    """
    known = {_letters(name): name for name in names}
    ids = {_letters(model_id.rsplit("/", maxsplit=1)[-1]): name for model_id, name in CATALOGUE_NAMES.items()}
    last = text.strip().rsplit("/", maxsplit=1)[-1]
    tried = (
        catalogue_name_of(text.strip()),
        *(found for part in (last, _FORMATS.sub("", last)) for found in _spelt(part, known, ids)),
    )
    return next((name for name in tried if name is not None), None)


def _spelt(part: str, known: Mapping[str, str], ids: Mapping[str, str]) -> tuple[str | None, ...]:
    return known.get(_letters(part)), ids.get(_letters(part)), _OTHERS_WRITE.get(part.casefold())


def _letters(name: str) -> str:
    return re.sub(r"[-_ ]+", "-", name.casefold())


def catalogue_name_of(model_id: str) -> str | None:
    """Return the catalogue name of a Hub id, letter case aside; None where the catalogue has no such model."""
    return _BY_FOLDED.get(model_id.casefold())


def id_as_written(model_id: str) -> str:
    """Return a Hub id of the catalogue as the Hub writes it; any other as it is."""
    return next((known for known in CATALOGUE_NAMES if known.casefold() == model_id.casefold()), model_id)


_BY_FOLDED = {model_id.casefold(): name for model_id, name in CATALOGUE_NAMES.items()}
