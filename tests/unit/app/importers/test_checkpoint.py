"""The format of a checkpoint's weights, by its quantization_config."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.catalog import model_document
from meshwright.app.importers.checkpoint import CheckpointFormat, checkpoint_format
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.costmodels.serving.precision import Quantised
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import WEIGHT_FORMATS

ALL, FEED_FORWARD = Quantised.PROJECTIONS, Quantised.FEED_FORWARD
_INT4_GROUPS = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (DType.FP8, WeightFormat.FP8_BLOCK, ALL)),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, (DType.FP8, WeightFormat.FP8, ALL)),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
            (DType.FP4, WeightFormat.MXFP4, FEED_FORWARD),
        ),
        ({"quant_method": "gptq", "bits": 8}, (DType.BF16, WeightFormat.INT8, ALL)),
        ({"quant_method": "awq"}, (DType.BF16, WeightFormat.INT4, ALL)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (DType.BF16, WeightFormat.INT4, ALL)),
        (
            {"quant_method": "compressed-tensors", "config_groups": _INT4_GROUPS, "ignore": ["re:.*self_attn.*"]},
            (DType.BF16, WeightFormat.INT4, FEED_FORWARD),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (DType.FP4, WeightFormat.NVFP4, ALL)),
    ],
)
def test_format_is_read(given: dict[str, Any], expected: tuple[DType, WeightFormat, Quantised]) -> None:
    stored = checkpoint_format({"model_type": "llama", "quantization_config": given})
    assert stored == CheckpointFormat(*expected)
    assert stored.weights in WEIGHT_FORMATS[stored.precision]


def test_a_nested_model_has_it_in_its_text_model() -> None:
    nested = {"model_type": "llava", "text_config": {"quantization_config": {"quant_method": "awq", "bits": 4}}}
    stored = checkpoint_format(nested)
    assert stored is not None
    assert stored.weights is WeightFormat.INT4


def test_a_checkpoint_without_one_is_not_quantised() -> None:
    assert checkpoint_format(model_document("llama-3.1-8b")) is None


@pytest.mark.parametrize(
    "given",
    [
        "fp8",
        {"quant_method": "hqq"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "compressed-tensors"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {**_INT4_GROUPS, "b": {"weights": {"num_bits": 8, "type": "int"}}},
        },
    ],
)
def test_unknown_kinds_are_refused(given: object) -> None:
    with pytest.raises(ModelError):
        checkpoint_format({"model_type": "llama", "quantization_config": given})
