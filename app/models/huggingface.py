"""Hugging Face config.json -> ModelGraph, with exactly the parameters that transformers gives (5.23, meta device)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.models.architecture import (
    Architecture,
    Bias,
    Branch,
    ClassHead,
    EncoderDecoder,
    Head,
    Layer,
    NormKind,
    Transform,
)
from meshwright.app.models.assembly import assemble
from meshwright.app.models.bodies.attention import Attention
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.config_fields import MAX_FIELD, ConfigFields
from meshwright.app.models.families import FAMILIES
from meshwright.app.models.families.family import Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.app.models.native_params import as_config, is_native
from meshwright.app.models.stated_parameters import StatedParameters, refuse_contradiction, stated_by_names
from meshwright.costmodels.errors import ModelError, did_you_mean
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.solver.problem.graph import (
    Hyperparameters,
    ModelGraph,
    RotaryScaling,
    RotaryScalingKind,
    RouterRule,
    RouterScore,
)

# Models of text and images, and the text model that their 'text_config' describes unless it says otherwise.
TEXT_MODELS = {
    "aya_vision": "cohere2",
    "exaone4_5": "exaone4",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
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
_TEXT_DECODER = " (text decoder)"
# Of these, older files give the text model's fields beside those of the vision tower.
FLAT_MODELS = frozenset({"qwen2_vl", "qwen2_5_vl", "step3p7"})


def read_huggingface_config(
    document: Mapping[str, Any], *, name: str, assume_decoder: bool = False, stated: StatedParameters | None = None
) -> ModelGraph:
    """The model graph of a parsed config.json.

    Fields that say nothing about weights or work (dtype, quantization_config, token ids, dropout) are not
    read: precision is part of the workload. Rotary base and scaling, the norms' epsilon and the router's rule are handed
    on to launch files (``hyperparameters``). Fields that the file leaves out have the class defaults of transformers. Of
    a model of text and images the text decoder alone is read, and the graph's name says so.

    With ``assume_decoder`` a file of an unknown kind is read as a decoder of Llama's layers, which the graph's name says. It is
    refused where ``stated``, what the checkpoint's files state of its parameters, or else the size in a name says otherwise.

    Raises ModelError for a family that is not supported and for fields that are missing, ill-typed or out of range.
    """
    if not isinstance(document, Mapping):
        raise ModelError("a config.json must be an object", given=type(document).__name__)
    if is_native(document):
        document = as_config(document)
    refuse_other_files(document)
    if _holds_text_model(document):
        return read_huggingface_config(_text_config(document), name=_as_text_decoder(name))
    if isinstance(document.get(_SEEING.get(str(document.get("model_type")), "")), Mapping):
        name = _as_text_decoder(name)
    if assume_decoder and _is_unknown(document):
        described = _inner(document) or document
        stated = stated or stated_by_names((name, document.get("_name_or_path"), document.get("name_or_path")))
        assumption = "assumed decoder" if stated is not None else "assumed decoder of unstated size"
        assumed = assemble(f"{name} ({assumption})", read_assumed_decoder(described, str(document.get("model_type"))))
        if stated is not None:
            refuse_contradiction(assumed.parameters(), stated)
        return replace(assumed, hyperparameters=read_hyperparameters(described))
    family = _family(document)
    _check_architecture(document, family)
    fields = ConfigFields(document, family.model_type, family.defaults, family.aliases)
    architecture = family.read(fields)
    given = _architecture(document)
    if given not in family.architectures and given in classifier_names(family):
        architecture = as_classifier(architecture, document, family.model_type)
    elif given not in family.architectures and given in embedder_names(family):
        architecture = as_embedder(architecture, family.model_type)
    return replace(assemble(name, architecture), hyperparameters=read_hyperparameters(document))


def _as_text_decoder(name: str) -> str:
    return name if name.endswith(_TEXT_DECODER) else f"{name}{_TEXT_DECODER}"


def _is_unknown(document: Mapping[str, Any]) -> bool:
    """Return True where neither the kind nor the class of the file is of a family that is known."""
    kind = document.get("model_type")
    known = {name for family in FAMILIES.values() for name in family.architectures}
    return kind not in FAMILIES if kind is not None else _architecture(document) not in known


# Where models of several parts hold their text model; that of Qwen-Omni lies in one of these inside another.
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
# Kinds under whose name come text models, and models of text and images by fields beside.
_SEEING = {"chatglm": "vision_config", "qwen": "visual"}
_MOST_NESTED = 3


def _holds_text_model(document: Mapping[str, Any], depth: int = 0) -> bool:
    """Return True for a model known to hold a text model, and for an unknown one that holds one of a known kind."""
    model_type = document.get("model_type")
    if model_type is not None and (not isinstance(model_type, str) or model_type in FAMILIES):
        return False
    if model_type is None and _is_known_class(document):
        return False
    inner = _inner(document)
    if model_type in TEXT_MODELS:
        return True
    return inner is not None and depth < _MOST_NESTED and (_names_family(inner) or _holds_text_model(inner, depth + 1))


def _inner(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((document[name] for name in _INNER if isinstance(document.get(name), Mapping)), None)


def _names_family(document: Mapping[str, Any]) -> bool:
    kind = document.get("model_type")
    return kind in FAMILIES if isinstance(kind, str) else kind is None and _is_known_class(document)


def _is_known_class(document: Mapping[str, Any]) -> bool:
    given = document.get("architectures")
    name = given[0] if isinstance(given, list) and given else None
    return isinstance(name, str) and any(name in family.architectures for family in FAMILIES.values())


def _text_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested config of the text model; what it leaves out and the outer file says about tied weights holds."""
    kind, text = document.get("model_type"), _inner(document) or {}
    if not text and kind in FLAT_MODELS:
        text = {key: value for key, value in document.items() if key != "model_type"}
    elif not text and document.get("text_config") not in (None, {}):
        raise ModelError("'text_config' must be an object", given=document["text_config"])
    outer = {key: document[key] for key in ("tie_word_embeddings",) if key in document}
    if kind in TEXT_MODELS and _holds_text_model(text):
        raise ModelError("'text_config' must describe a text model", given=text.get("model_type"))
    if text.get("model_type") is None and _is_known_class(text):
        return {**outer, **text}
    default = TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    nested = _inner(text) is not None and not _names_family(text)
    kept = {} if nested else {"architectures": None}
    return _plain_attention({"model_type": default, **outer, **text, **kept})


def _plain_attention(text: dict[str, Any]) -> dict[str, Any]:
    """A DeepSeek-V2 without latent attention, which DeepSeek-VL2 and DeepSeek-OCR hold, by the kind that it has."""
    if text.get("model_type") in ("deepseek_v2", "deepseek_v3") and text.get("use_mla") is False:
        return text | {"model_type": "deepseek"}
    return text


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
        if architecture in (*family.architectures, *classifier_names(family), *embedder_names(family)):
            return family.model_type
    raise ModelError("unknown architecture", given=architecture, allowed=", ".join(_supported_architectures()))


def _check_architecture(document: Mapping[str, Any], family: Family) -> None:
    architecture = _architecture(document)
    allowed = (*family.architectures, *classifier_names(family), *embedder_names(family))
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


# Models with a classifier in the place of the vocabulary head (reward models, rerankers, guards), and those without a head, of
# which one token's vector is wanted (embeddings).
#
# transformers has one form for all decoders (``GenericForSequenceClassification``): the last token's vector, after the final
# norm, times a matrix without bias that has a row for each label. Encoders have a dense layer before it, and a bias.

LABELS = "labels"
"""Classes of a classifier."""

_SUFFIX = "ForSequenceClassification"
_EMBEDDER_SUFFIX = "Model"
_HEADED_SUFFIXES = ("ForCausalLM", "ForMaskedLM")
_OTHER_FORMS = {"GPT2LMHeadModel": ("GPT2",), "Gemma3ForCausalLM": ("Gemma3", "Gemma3Text")}
# A model that says nothing of its labels has two (transformers 5.23, PreTrainedConfig).
_USUAL_LABELS = 2


def classifier_names(family: Family) -> tuple[str, ...]:
    """The classes of a family's classifiers, one for each of its classes with a vocabulary head."""
    return tuple(f"{stem}{_SUFFIX}" for stem in _stems(family))


def embedder_names(family: Family) -> tuple[str, ...]:
    """The classes of a family's models without a head, one for each of its classes with a vocabulary head."""
    return tuple(f"{stem}{_EMBEDDER_SUFFIX}" for stem in _stems(family))


def _stems(family: Family) -> Iterator[str]:
    for name in family.architectures:
        plain = next((name.removesuffix(suffix) for suffix in _HEADED_SUFFIXES if name.endswith(suffix)), None)
        yield from _OTHER_FORMS.get(name, () if plain is None else (plain,))


def as_classifier(architecture: Architecture | EncoderDecoder, document: Mapping[str, Any], family: str) -> Architecture:
    """The architecture with a classifier of the file's labels as its head; raises ModelError for labels that are none."""
    single, head = _single_stack(architecture, family)
    is_encoder = head.transform is not None
    head_of_labels = ClassHead(head.norm, bias(is_encoder), LABELS, _classifier_layer(head))
    return replace(single, dims={**single.dims, LABELS: _labels(document, family)}, head=head_of_labels)


def as_embedder(architecture: Architecture | EncoderDecoder, family: str) -> Architecture:
    """The architecture without its vocabulary head, with the dense layer that it then has."""
    single, head = _single_stack(architecture, family)
    return replace(single, head=ClassHead(head.norm, Bias.NONE, None, head.pooler))


def _single_stack(architecture: Architecture | EncoderDecoder, family: str) -> tuple[Architecture, Head]:
    if isinstance(architecture, EncoderDecoder) or not isinstance(architecture.head, Head) or architecture.head.width != HIDDEN:
        raise ModelError(f"{family}: a head of this kind is not supported", allowed="one stack of layers with one final norm")
    return architecture, architecture.head


def _classifier_layer(head: Head) -> Transform | None:
    """The pooler; where there is none, the dense layer of the masked-language head, with its norm if it is ModernBERT's."""
    if head.pooler is not None or head.transform is None:
        return head.pooler
    return head.transform if head.norm is not None else replace(head.transform, norm=None)


def _labels(document: Mapping[str, Any], family: str) -> int:
    fields = ConfigFields(document, family, {"num_labels": None, "id2label": None})
    count = fields.optional_entries("id2label") or fields.optional_size("num_labels") or _USUAL_LABELS
    return min(count, MAX_FIELD)


# Hyperparameters of a config.json: what changes no plan, and what launch files hand on.
#
# Nothing here refuses a file: a field that is missing, ill-typed or given for each kind of layer apart is not stated.

_BASES = ("rope_theta", "rotary_emb_base")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
_SECOND_BASES = ("rope_local_base_freq",)
"""A second base, of the layers with a window: one base would then be wrong for some."""

_ALWAYS_NORMALISED = frozenset({"mixtral", "gpt_oss"})
"""Kinds whose router takes a softmax over the chosen experts alone (transformers 5.23, modeling_mixtral, modeling_gpt_oss)."""
_SOFTMAX = frozenset({"qwen2_moe", "qwen3_moe", "deepseek_v2", "olmoe"})
"""Kinds whose router takes a softmax over all experts; ``norm_topk_prob`` says whether the chosen ones are weighed anew."""


def read_hyperparameters(document: Mapping[str, Any]) -> Hyperparameters | None:
    """The hyperparameters that the file states of rotary positions, norms and router; None where it states nothing."""
    rotary = _rotary(document)
    read = Hyperparameters(
        rotary_base=_number(rotary, _BASES),
        rotary_share=_share(rotary),
        rotary_scaling=_scaling(document, rotary),
        norm_epsilon=_number(document, _EPSILONS),
        router=_router(document),
        positions=_positions(document, rotary),
    )
    return None if read == Hyperparameters() else read


_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_sequence_length", "max_seq_length", "seq_len", "max_target_positions"),
)
"""Fields that say the longest sequence (vLLM, _get_and_verify_max_len); the shortest of them holds."""
_STRETCHED = frozenset({"longrope", "su", "llama3", "mrope", "default", "proportional"})
"""Rules of rotary positions whose file states the stretched length itself (the same function)."""


def _positions(document: Mapping[str, Any], rotary: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest sequence as vLLM derives them; None where the file says nothing of it."""
    said = [value for name in _LENGTHS if isinstance(value := document.get(name), int) and value > 0]
    if not said:
        return None
    scaling = document.get("rope_scaling") if rotary is document else rotary
    if not isinstance(scaling, Mapping):
        return min(said)
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = _number(scaling, ("factor",)) or 1.0
    if not isinstance(kind, str) or kind in _STRETCHED:
        return min(said)
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int) and original > 0:
        return int(original * factor)
    return int(min(said) * factor)


def _rotary(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of rotary positions: of the file, or of its ``rope_parameters``; none where kinds of layers differ in them."""
    if any(document.get(name) is not None for name in _SECOND_BASES):
        return {}
    nested = document.get("rope_parameters")
    if not isinstance(nested, Mapping):
        return document
    return {} if any(isinstance(value, Mapping) for value in nested.values()) else {**document, **nested}


def _share(rotary: Mapping[str, Any]) -> float | None:
    share = _number(rotary, _SHARES)
    return share if share is not None and share <= 1 else None


def _scaling(document: Mapping[str, Any], rotary: Mapping[str, Any]) -> RotaryScaling | None:
    given = document.get("rope_scaling") if rotary is document else rotary
    if not isinstance(given, Mapping):
        return None
    kind = given.get("rope_type", given.get("type"))
    if kind not in {known.value for known in RotaryScalingKind}:
        return None
    positions = given.get("original_max_position_embeddings")
    return RotaryScaling(
        kind=RotaryScalingKind(kind),
        factor=_number(given, ("factor",)),
        original_positions=positions if isinstance(positions, int) and positions > 0 else None,
        low_frequency=_number(given, ("low_freq_factor",)),
        high_frequency=_number(given, ("high_freq_factor",)),
        mscale=_number(given, ("mscale",)),
        mscale_all_dim=_number(given, ("mscale_all_dim",)),
    )


def _router(document: Mapping[str, Any]) -> RouterRule | None:
    kind, score = document.get("model_type"), document.get("scoring_func")
    if score is None and kind in _ALWAYS_NORMALISED | _SOFTMAX:
        score = RouterScore.SOFTMAX.value
    if score not in {known.value for known in RouterScore}:
        return None
    loss = document.get("router_aux_loss_coef")
    return RouterRule(
        score=RouterScore(score),
        normalised=kind in _ALWAYS_NORMALISED or document.get("norm_topk_prob") is True,
        scale=_number(document, ("routed_scaling_factor",)) or 1.0,
        has_bias=document.get("topk_method") == "noaux_tc" or document.get("use_routing_bias") is True,
        auxiliary_loss=float(loss) if isinstance(loss, int | float) and not isinstance(loss, bool) and loss >= 0 else None,
    )


def _number(document: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these fields that is a positive number."""
    for name in names:
        value = document.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
    return None


# JSON files that lie beside a config.json, or describe no language model: refused by what they are, with the file to give.

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


# A decoder that no family is known of, read as its fields say: Llama's layers, with routed experts where the file has them.
#
# Biases, norms of queries and keys, windows and shared experts that the file does not name are
# missing: parameters and work are approximate, within a few percent for most decoders of today.
# Layers that are no attention (state space, linear) are not seen.

_DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_experts": None,
    "moe_intermediate_size": None,
    "n_shared_experts": None,
    "first_k_dense_replace": 0,
}
_ALIASES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("ffn_hidden_size", "ffn_dim", "n_inner"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads"),
    "hidden_act": ("hidden_activation", "activation_function"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_k", "top_k_experts"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "first_k_dense_replace": ("num_dense_layers",),
}


def read_assumed_decoder(document: Mapping[str, Any], model_type: str) -> Architecture:
    """Return the decoder that the fields of an unknown kind of config.json describe; raises ModelError for what is missing."""
    fields = ConfigFields(document, model_type, _DEFAULTS, _ALIASES)
    attention_bias = bias(fields.optional_flag("attention_bias"))
    attention = Branch("attn", Attention(qkv_bias=attention_bias, out_bias=attention_bias), NormKind.RMS)
    n_layers, n_experts = fields.layers(), fields.optional_size("num_experts")
    if n_experts is None:
        layer = Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS)))
        return Architecture(llama_dims(fields), (layer,) * n_layers, rms_head(fields))
    n_dense = min(fields.count("first_k_dense_replace"), n_layers)
    width = fields.optional_size("moe_intermediate_size") or fields.size("intermediate_size")
    n_shared = fields.optional_size("n_shared_experts")
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.NONE if n_shared is None else SharedExpert.ADDED)
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    dense = (Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS))),) * n_dense
    dims = llama_dims(fields, ffn=None if n_dense else width)
    dims |= expert_dims(fields, width=width, shared_width=None if n_shared is None else n_shared * width)
    return Architecture(dims, (*dense, *(sparse,) * (n_layers - n_dense)), rms_head(fields))
