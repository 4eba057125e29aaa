"""The weights that a checkpoint stores narrow, by the ``quantization_config`` of its config.json.

Sources: the field as transformers 5 reads it (fp8, fbgemm_fp8, mxfp4, gptq, awq, bitsandbytes), compressed-tensors and NVIDIA
ModelOpt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import DType

FIELD = "quantization_config"
EXPERTS_FIELD = "expert_dtype"

# Lists of modules that stay wide, by the makers of checkpoints.
_WIDE_MODULES = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
_ATTENTION = ("self_attn", "attn")
_INTO_ATTENTION = frozenset({"q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})
"""The projections of attention but that of its output."""
_BY_BITS = {
    ("float", 8): WeightFormat.FP8,
    ("float", 4): WeightFormat.NVFP4,
    ("int", 8): WeightFormat.INT8,
    ("int", 4): WeightFormat.INT4,
}
COMPUTES_IN: Mapping[WeightFormat, DType] = {
    WeightFormat.BF16: DType.BF16,
    WeightFormat.FP16: DType.FP16,
    WeightFormat.FP8: DType.FP8,
    WeightFormat.FP8_BLOCK: DType.FP8,
    WeightFormat.NVFP4: DType.FP4,
    WeightFormat.MXFP4: DType.FP4,
    WeightFormat.INT8: DType.BF16,
    WeightFormat.INT4: DType.BF16,
}
"""The precision that engines compute in with weights so stored; of integers any of 16 bits."""
_OF_16_BITS = frozenset({DType.BF16, DType.FP16})
_MODELOPT = {
    "FP8": WeightFormat.FP8,
    "NVFP4": WeightFormat.NVFP4,
    "W4A16_AWQ": WeightFormat.INT4,
    "INT4_AWQ": WeightFormat.INT4,
    "MXFP4": WeightFormat.MXFP4,
}
_MODELOPT_METHOD = "modelopt"
_MIXED = "MIXED_PRECISION"
_FEED_FORWARD = (frozenset({"experts"}), frozenset({"mlp", "ffn", "feed_forward"}))
"""Parts of the names of feed-forward products: of routed experts, which hold most weights where there are some, or of all."""

QUANTISATION_FILE = "hf_quant_config.json"
"""File of ModelOpt beside a config.json that says nothing of quantisation itself."""
_KNOWN = "fp8, fbgemm_fp8, mxfp4, gptq, awq, bitsandbytes, compressed-tensors, modelopt"


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """The format that a checkpoint's products compute in, that of its quantised weights, and which weights those are."""

    precision: DType
    weights: WeightFormat
    quantised: Quantised

    def is_meant_by(self, precision: DType | None, weights: WeightFormat | None) -> bool:
        """Return True where words for a format do not contradict this one, which is the one that they mean then."""
        if weights not in (None, self.weights):
            return False
        return precision in (None, self.precision) or {precision, self.precision} <= _OF_16_BITS


def checkpoint_format(document: Mapping[str, Any]) -> CheckpointFormat | None:
    """Return the format of the checkpoint of a parsed config.json, None where it says nothing of quantisation.

    Raises ModelError for a kind of quantisation that is not known: a serving request then has to say its precision.
    """
    given = document.get(FIELD)
    if given is None and isinstance(document.get("text_config"), Mapping):
        given = document["text_config"].get(FIELD)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ModelError(f"'{FIELD}' must be an object", given=given)
    if document.get(EXPERTS_FIELD) == "fp4":
        # DeepSeek-V4: routed experts in 4 bits; what is in 8 bits beside them is counted in 16.
        return CheckpointFormat(DType.FP4, WeightFormat.MXFP4, Quantised.FEED_FORWARD)
    weights = _weights(given)
    if weights is None:
        raise ModelError(
            "this kind of quantisation is not known",
            given=" ".join(str(given[name]) for name in ("quant_method", "quant_algo") if given.get(name)),
            allowed=_KNOWN,
            remedy="say 'precision' and 'weights' in the workload",
        )
    return CheckpointFormat(COMPUTES_IN[weights], weights, _quantised(given))


def with_quantisation_file(config: object, beside: object) -> object:
    """Return a parsed config.json with what a parsed file of ModelOpt beside it says, where it says nothing itself."""
    said = beside.get("quantization") if isinstance(beside, Mapping) else None
    if not isinstance(config, dict) or not isinstance(said, Mapping) or config.get(FIELD) is not None:
        return config
    return {**config, FIELD: {"quant_method": _MODELOPT_METHOD, **said}}


def _weights(given: Mapping[str, Any]) -> WeightFormat | None:
    method, bits = given.get("quant_method"), given.get("bits")
    if method is None and "quant_algo" in given:
        method = _MODELOPT_METHOD
    match method:
        case "fp8" | "fbgemm_fp8":
            return WeightFormat.FP8_BLOCK if given.get("weight_block_size") else WeightFormat.FP8
        case "mxfp4":
            return WeightFormat.MXFP4
        case "gptq" | "awq":
            # Both store 4 bits unless they say otherwise.
            return _BY_BITS.get(("int", 4 if bits is None else bits))
        case "bitsandbytes":
            return WeightFormat.INT4 if given.get("load_in_4bit") else WeightFormat.INT8
        case "compressed-tensors":
            return _of_groups(given.get("config_groups"))
        case "modelopt":
            return _MODELOPT.get(_algorithm(given) or "")
        case _:
            return None


def _algorithm(given: Mapping[str, Any]) -> str | None:
    """ModelOpt's algorithm; of a mixed checkpoint that of its routed experts, else of its feed-forward
    networks, None where these have several."""
    if given.get("quant_algo") != _MIXED:
        return str(given.get("quant_algo"))
    layers = given.get("quantized_layers")
    entries = layers.items() if isinstance(layers, Mapping) else ()
    algorithms = {str(name): str(entry.get("quant_algo")) for name, entry in entries if isinstance(entry, Mapping)}
    for parts in _FEED_FORWARD:
        found = {algorithm for name, algorithm in algorithms.items() if parts & set(name.split("."))}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _of_groups(groups: object) -> WeightFormat | None:
    """The one format that all groups of a compressed-tensors checkpoint store their weights in."""
    if not isinstance(groups, Mapping):
        return None
    formats = set()
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            return None
        kind = _BY_BITS.get((str(weights.get("type")), weights.get("num_bits") or 0))
        formats.add(WeightFormat.FP8_BLOCK if kind is WeightFormat.FP8 and weights.get("strategy") == "block" else kind)
    return next(iter(formats)) if len(formats) == 1 else None


def _quantised(given: Mapping[str, Any]) -> Quantised:
    """Feed-forward networks alone where attention is among the modules that stay wide, or has a format of its own; its output
    too where only the projections into attention stay wide."""
    if given.get("quant_algo") == _MIXED:
        return Quantised.FEED_FORWARD
    wide = [_parts(str(module)) for name in _WIDE_MODULES for module in given.get(name) or ()]
    of_attention = [parts for parts in wide if any(part in _ATTENTION for part in parts)]
    if not of_attention:
        return Quantised.PROJECTIONS
    only_inputs = all(_INTO_ATTENTION.intersection(parts) for parts in of_attention)
    return Quantised.FEED_FORWARD_AND_OUTPUT if only_inputs else Quantised.FEED_FORWARD


def _parts(module: str) -> list[str]:
    """Words of a module's name or pattern: ``model.layers.*.self_attn``, ``re:.*self_attn.*``."""
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in module).split()
