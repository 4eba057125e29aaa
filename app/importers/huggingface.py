"""Hugging Face config.json -> ModelGraph, with exactly the parameters that transformers gives (5.23, meta device)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.app.importers.assembly import assemble
from meshwright.app.importers.classifiers import as_classifier, classifier_names
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families import FAMILIES
from meshwright.app.importers.families.assumed import read_assumed_decoder
from meshwright.app.importers.families.family import Family
from meshwright.app.importers.hyperparameters import read_hyperparameters
from meshwright.app.importers.other_files import refuse_other_files
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.names import did_you_mean
from meshwright.solver.problem.graph import ModelGraph

# Models of text and images, and the text model that their 'text_config' describes unless it says otherwise.
TEXT_MODELS = {
    "aya_vision": "cohere2",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "smolvlm": "llama",
    "step3p7": "step3p5",
}
# Of these, older files give the text model's fields beside those of the vision tower.
FLAT_MODELS = frozenset({"qwen2_vl", "qwen2_5_vl", "step3p7"})


def read_huggingface_config(document: Mapping[str, Any], *, name: str, assume_decoder: bool = False) -> ModelGraph:
    """The model graph of a parsed config.json.

    Fields that say nothing about weights or work (dtype, quantization_config, token ids, dropout) are not
    read: precision is part of the workload. Rotary base and scaling, the norms' epsilon and the router's rule are handed
    on to launch files (``hyperparameters``). Fields that the file leaves out have the class defaults of transformers. Of
    a model of text and images the text decoder alone is read, and the graph's name says so.

    With ``assume_decoder`` a file of an unknown kind is read as a decoder of Llama's layers, which the graph's name says.

    Raises ModelError for a family that is not supported and for fields that are missing, ill-typed or out of range.
    """
    if not isinstance(document, Mapping):
        raise ModelError("a config.json must be an object", given=type(document).__name__)
    refuse_other_files(document)
    if _holds_text_model(document):
        return read_huggingface_config(_text_config(document), name=f"{name} (text decoder)")
    if assume_decoder and _is_unknown(document):
        text = document.get("text_config")
        described = text if isinstance(text, Mapping) else document
        assumed = assemble(f"{name} (assumed decoder)", read_assumed_decoder(described, str(document.get("model_type"))))
        return replace(assumed, hyperparameters=read_hyperparameters(described))
    family = _family(document)
    _check_architecture(document, family)
    fields = ConfigFields(document, family.model_type, family.defaults, family.aliases)
    architecture = family.read(fields)
    if _architecture(document) in classifier_names(family):
        architecture = as_classifier(architecture, document, family.model_type)
    return replace(assemble(name, architecture), hyperparameters=read_hyperparameters(document))


def _is_unknown(document: Mapping[str, Any]) -> bool:
    """Return True where neither the kind nor the class of the file is of a family that is known."""
    kind = document.get("model_type")
    known = {name for family in FAMILIES.values() for name in family.architectures}
    return kind not in FAMILIES if kind is not None else _architecture(document) not in known


def _holds_text_model(document: Mapping[str, Any]) -> bool:
    """Return True for a model known to hold a text model, and for an unknown one whose ``text_config`` names a known type."""
    model_type = document.get("model_type")
    if not isinstance(model_type, str) or model_type in FAMILIES:
        return False
    text = document.get("text_config")
    return model_type in TEXT_MODELS or (isinstance(text, Mapping) and text.get("model_type") in FAMILIES)


def _text_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested config of the text model; what it leaves out and the outer file says about tied weights holds."""
    text = document.get("text_config") or {}
    if not text and document["model_type"] in FLAT_MODELS:
        text = {key: value for key, value in document.items() if key != "model_type"}
    if not isinstance(text, Mapping):
        raise ModelError("'text_config' must be an object", given=text)
    outer = {key: document[key] for key in ("tie_word_embeddings",) if key in document}
    if _holds_text_model(text):
        raise ModelError("'text_config' must describe a text model", given=text["model_type"])
    return {"model_type": TEXT_MODELS.get(document["model_type"]), **outer, **text, "architectures": None}


def supported_model_types() -> tuple[str, ...]:
    """Every model_type that can be read, sorted."""
    return tuple(sorted((*FAMILIES, *TEXT_MODELS)))


def _family(document: Mapping[str, Any]) -> Family:
    model_type = document.get("model_type")
    if model_type is None:
        model_type = _model_type_of_architecture(document)
    if not isinstance(model_type, str):
        raise ModelError("'model_type' must be a string", given=model_type, allowed=", ".join(supported_model_types()))
    if model_type not in FAMILIES:
        known = supported_model_types()
        remedy = did_you_mean(
            model_type, known, otherwise="give the model as a model graph, or as a config.json of a listed type"
        )
        remedy += "; 'assume_decoder' (--assume-decoder) reads a decoder of an unknown kind approximately"
        raise ModelError("unknown model_type", given=model_type, allowed=", ".join(known), remedy=remedy)
    return FAMILIES[model_type]


def _model_type_of_architecture(document: Mapping[str, Any]) -> str:
    architecture = _architecture(document)
    if architecture is None:
        raise ModelError(
            "a config.json must name its 'model_type' or 'architectures'", allowed=", ".join(supported_model_types())
        )
    for family in FAMILIES.values():
        if architecture in (*family.architectures, *classifier_names(family)):
            return family.model_type
    raise ModelError("unknown architecture", given=architecture, allowed=", ".join(_supported_architectures()))


def _check_architecture(document: Mapping[str, Any], family: Family) -> None:
    architecture, allowed = _architecture(document), (*family.architectures, *classifier_names(family))
    if architecture is not None and architecture not in allowed:
        raise ModelError(
            f"architecture not supported for model_type {family.model_type!r}", given=architecture, allowed=", ".join(allowed)
        )


def _architecture(document: Mapping[str, Any]) -> str | None:
    """First entry of 'architectures', which is the class that transformers builds."""
    given = document.get("architectures")
    if given is None or given == []:
        return None
    if not isinstance(given, list) or not isinstance(given[0], str):
        raise ModelError("'architectures' must be a list of class names", given=given)
    return given[0]


def _supported_architectures() -> list[str]:
    return sorted({name for family in FAMILIES.values() for name in family.architectures})
