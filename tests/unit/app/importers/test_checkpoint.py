"""The format of a checkpoint's weights, by its quantization_config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.models.catalog import model_document
from meshwright.app.models.checkpoint import CheckpointFormat, checkpoint_format
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised
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
        ({"producer": {"name": "modelopt"}, "quant_algo": "FP8", "ignore": ["lm_head"]}, (DType.FP8, WeightFormat.FP8, ALL)),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.layers.0.mlp.up_proj": {"quant_algo": "MXFP8"},
                    "model.layers.3.mlp.experts.7.w1": {"quant_algo": "NVFP4", "group_size": 16},
                    "model.layers.3.self_attn.q_proj": {"quant_algo": "MXFP8"},
                },
            },
            (DType.FP4, WeightFormat.NVFP4, FEED_FORWARD),
        ),
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


def test_a_file_of_quantisation_beside_a_config_is_read(tmp_path: Path) -> None:
    """The config's own word goes first."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": {"quant_algo": "NVFP4"}}))
    config, _ = FilesBeside(tmp_path).read_config(".")
    assert isinstance(config, dict)
    stored = checkpoint_format(config)
    assert stored is not None and stored.weights is WeightFormat.NVFP4
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}))
    config, _ = FilesBeside(tmp_path).read_config(".")
    assert isinstance(config, dict)
    stored = checkpoint_format(config)
    assert stored is not None and stored.weights is WeightFormat.FP8


def test_mixed_feed_forward_networks_are_refused() -> None:
    layers = {"a.mlp.up_proj": {"quant_algo": "FP8"}, "b.mlp.up_proj": {"quant_algo": "NVFP4"}}
    with pytest.raises(ModelError, match="given: 'modelopt MIXED_PRECISION'"):
        checkpoint_format(
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
        )
