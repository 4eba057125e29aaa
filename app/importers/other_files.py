"""JSON files that lie beside a config.json, or describe no language model: refused by what they are, with the file to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.costmodels.errors import ModelError

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class _OtherFile:
    what: str
    remedy: Callable[[Mapping[str, Any]], str]


def _beside(_: Mapping[str, Any]) -> str:
    return f"give the {CONFIG} beside it, or the checkpoint's folder"


def _of_base(document: Mapping[str, Any]) -> str:
    base = document.get("base_model_name_or_path")
    return f"give the {CONFIG} of the base model" + (f", {base}" if isinstance(base, str) and base else "")


def _give_a_decoder(_: Mapping[str, Any]) -> str:
    return "give the config.json of a language model, as that of its text encoder"


# Fields that a file of the kind has and a config.json has not.
_BY_FIELDS: tuple[tuple[tuple[str, ...], _OtherFile], ...] = (
    (
        ("producer", "quantization"),
        _OtherFile("a file of quantisation (hf_quant_config.json), which describes no model", _beside),
    ),
    (("_diffusers_version",), _OtherFile("a part of a diffusion pipeline, which is no language model", _give_a_decoder)),
    (("peft_type",), _OtherFile("the configuration of an adapter (adapter_config.json)", _of_base)),
    (("tokenizer_class", "model_max_length"), _OtherFile("the configuration of a tokenizer", _beside)),
    (("weight_map", "metadata"), _OtherFile("the index of a checkpoint's files", _beside)),
    (("image_processor_type",), _OtherFile("the configuration of an image processor", _beside)),
    (("feature_extractor_type",), _OtherFile("the configuration of a feature extractor", _beside)),
)
_SAYS_MODEL = ("model_type", "architectures", "text_config")


def refuse_other_files(document: Mapping[str, Any]) -> None:
    """Raise ModelError for a parsed file that is none of a model, saying what it is and what to give."""
    if any(document.get(name) for name in _SAYS_MODEL):
        return
    for fields, kind in _BY_FIELDS:
        if all(name in document for name in fields):
            raise ModelError(f"this is {kind.what}", given=", ".join(fields), allowed=CONFIG, remedy=kind.remedy(document))
