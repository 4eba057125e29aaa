"""Models that are known by their names alone: copies of catalogue models in other formats, by other makers, in folders.

The last part of a name says which model it is, its endings in which format its weights are stored. Looking at a checkpoint's
own file is better: a name is asked where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any

from meshwright.app.models.catalog.huggingface_ids import CATALOGUE_NAMES, OTHER_FORMATS, letters
from meshwright.app.models.checkpoint import FIELD


class Wide(Enum):
    """The weights of a copy whose name says that they are not quantised."""

    WIDE = "16 bits"


NameFormat = Mapping[str, Any] | Wide | None
"""A ``quantization_config`` as a name says it; None where the name says nothing."""

_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_BLOCK_MAKERS = frozenset({"qwen", "deepseek-ai", "minimaxai", "moonshotai", "xiaomimimo", "stepfun-ai"})
"""Organisations whose checkpoints in fp8 have a scale for 128 x 128 weights, as those of DeepSeek-V3."""
_INT4 = {"quant_method": "gptq", "bits": 4}
_INT8 = {"quant_method": "gptq", "bits": 8}

NVFP4: Mapping[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_WIDE_IN_NVFP4: Mapping[str, tuple[str, ...]] = {
    "deepseek-v3": ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj"),
    "qwen3-235b-a22b": (),
}
"""Modules that stay wide in the NVFP4 copies of catalogue models, where it is not the attention of a mixture of experts (as in
nvidia's copies of Kimi-K2.5, Qwen3.5, GLM-5 and MiniMax-M2.5) and nothing of others: of nvidia/DeepSeek-R1-0528-FP4-v2 the
output of attention is narrow too, and all of nvidia/Qwen3-235B-A22B-FP4."""

_ENDINGS: tuple[tuple[str, Mapping[str, Any] | Wide], ...] = (
    (r"nvfp4(?:[-_.]?v?\d+)?|fp4(?:[-_.]?v?\d+)?", NVFP4),
    (r"mxfp4", {"quant_method": "mxfp4"}),
    (r"(?:gptq|autoround|auto-round)?[-_.]?(?:int8|8bit|w8a8|w8a16)", _INT8),
    (r"(?:unsloth[-_.])?(?:bnb[-_.]?4bit|nf4|4bit)", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    (r"bnb[-_.]?8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    (r"awq(?:[-_.](?:int4|4bit|w4a16|marlin))?", {"quant_method": "awq", "bits": 4}),
    (r"(?:gptq|autoround|auto-round)(?:[-_.](?:int4|4bit|w4a16))?|int4|w4a16(?:[-_.]g\d+)?|w4afp8", _INT4),
    (r"fp8(?:[-_.]?(?:dynamic|kv|block|static|e4m3))*", {"quant_method": "fp8"}),
    (r"(?:iq|q)[23456]_[a-z0-9_]+|gguf", _INT4),
    (r"q8_0", _INT8),
    (r"bf16|fp16|f16|16bit", Wide.WIDE),
)
"""Ends of the names of copies, and the ``quantization_config`` that they stand for. GGUF's formats are counted as the integers
of as many bits that are nearest."""

_ENDED = tuple(
    (re.compile(rf"^(.+?)[-_. ](?:quantized[-_.])?(?:{words})$", re.IGNORECASE), stored) for words, stored in _ENDINGS
)
_TUNED = re.compile(
    r"[-_. ](?:instruct|chat|it|base|hf|pt|thinking|preview|dpo|sft|rlhf|\d{4}|\d{2}-\d{2}|v\d+(?:\.\d+)?)$", re.IGNORECASE
)
"""Ends of the names of models that were trained further: their sizes stay those of the family."""
_MAKERS = re.compile(r"^meta[-_ ]", re.IGNORECASE)

MOST_CHARACTERS = 300
"""Characters of a name; paths may be longer than ids."""
MOST_ENDINGS = 6
"""Endings that a name may have."""
DECODER_OF = " (text decoder)"
"""Ending of the name of a model of text and images, of which the decoder is planned."""
SIZES_OF = " (sizes of {})"
"""Ending of the name of a model that is answered with the sizes of another."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A model that is known by its name.

    name        its name in the catalogue, whose sizes it has
    listed      the listed id or catalogue name that has its name; None where only the family is known
    stored      the format that its name says; None: that of the catalogue's file
    """

    name: str
    listed: str | None
    stored: NameFormat

    @property
    def is_sure(self) -> bool:
        """True where the whole name is that of a known model."""
        return self.listed is not None

    def config(self, document: Mapping[str, Any], *, has_experts: bool) -> dict[str, Any]:
        """Return the catalogue's file of the model with its weights stored as the name says."""
        found = dict(document)
        if self.stored is Wide.WIDE:
            found.pop(FIELD, None)
        elif self.stored is not None:
            wide = _WIDE_IN_NVFP4.get(self.name, ("self_attn",) if has_experts else ()) if self.stored == NVFP4 else ()
            found[FIELD] = dict(self.stored) | ({"exclude_modules": list(wide)} if wide else {})
        return found

    def said(self, text: str) -> str:
        """Return the sentence that says what the name was taken for."""
        if self.is_sure:
            return f"{text} is known by its name, as a copy of the catalogue's {self.name}"
        return f"{text} is not known: it is answered with the sizes of {self.name}, which its name is nearest to"


def format_of_name(text: str) -> NameFormat:
    """Return the format of a checkpoint's weights by the endings of its name."""
    _, stored = _without_format(text.rstrip("/").rsplit("/", maxsplit=1)[-1][-MOST_CHARACTERS:])
    return _BLOCKS if stored == {"quant_method": "fp8"} and _maker(text) in _BLOCK_MAKERS else stored


def hub_id_of(name: str) -> str | None:
    """Return the Hub id of a catalogue name: that of the same name, else of one that was trained to answer; None: no such."""
    for ending in ("", "-instruct", "-it", "-hf"):
        listed = _by_last_part().get(letters(name + ending))
        if listed is not None and "/" in listed[0]:
            return listed[0]
    return None


@lru_cache(maxsize=1024)
def copy_of(text: str) -> Copy | None:
    """Return the catalogue model that an id, a path or a name in words means; None where it means none."""
    text = text.strip().rstrip("/")
    if len(text) > MOST_CHARACTERS:
        return None
    last = text.rsplit("/", maxsplit=1)[-1]
    bare, _ = _without_format(last)
    stored = OTHER_FORMATS.get(text) or format_of_name(text)
    for part in (last, bare, _MAKERS.sub("", bare)):
        listed = _by_last_part().get(letters(part))
        if listed is not None:
            model_id, name = listed
            whole = stored or OTHER_FORMATS.get(model_id)
            return Copy(name, model_id, whole)
    # Else one whose name is that of a catalogue model with other endings of training.
    relative = _by_family().get(_family(_MAKERS.sub("", bare)))
    return None if relative is None else Copy(relative, None, stored)


_OTHERS_WRITE = {"llama 4 maverick": "llama-4-maverick", "llama 4 scout": "llama-4-scout", "llama 3.3 70b": "llama-3.1-70b"}
"""Names in tables of benchmarks that are shorter than an id and no name of the catalogue."""


def catalogue_name_in_words(text: str, names: Iterable[str]) -> str | None:
    """Return the one of the catalogue's ``names`` that a table means by a model, None where it means no model of it for sure.

    A table may write the name, a Hub id, or the id's last part under any organisation, with blanks for hyphens and with the
    number format of a quantised copy.
    """
    copy = copy_of(text)
    if copy is not None and copy.is_sure:
        return copy.name
    last = text.strip().rsplit("/", maxsplit=1)[-1]
    return {letters(name): name for name in names}.get(letters(last)) or _OTHERS_WRITE.get(last.casefold())


def _without_format(last: str) -> tuple[str, Mapping[str, Any] | Wide | None]:
    stored = None
    for _ in range(MOST_ENDINGS):
        found = next(((match[1], kind) for ended, kind in _ENDED if (match := ended.match(last))), None)
        if found is None:
            break
        last = found[0]
        # The ending nearest to the name says how the weights are stored: GPTQ-Int4, AWQ of a copy in BF16.
        stored = found[1] if stored is None or found[1] is not Wide.WIDE else stored
    return last, stored


def _family(part: str) -> str:
    for _ in range(MOST_ENDINGS):
        shorter = _TUNED.sub("", part)
        if shorter == part:
            break
        part = shorter
    return letters(part)


def _maker(text: str) -> str:
    return text.split("/", maxsplit=1)[0].casefold() if "/" in text else ""


@cache
def _by_last_part() -> Mapping[str, tuple[str, str]]:
    """Listed ids and catalogue names by what their last parts are made of; an id that is written first is meant first."""
    found: dict[str, tuple[str, str]] = {}
    for model_id, name in CATALOGUE_NAMES.items():
        found.setdefault(letters(model_id.rsplit("/", maxsplit=1)[-1]), (model_id, name))
    for model_id, name in CATALOGUE_NAMES.items():
        found.setdefault(letters(_without_format(model_id.rsplit("/", maxsplit=1)[-1])[0]), (model_id, name))
    for name in CATALOGUE_NAMES.values():
        found.setdefault(letters(name), (name, name))
    return found


@cache
def _by_family() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for part, (_, name) in _by_last_part().items():
        found.setdefault(_family(_without_format(part)[0]), name)
    return found
