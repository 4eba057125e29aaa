"""params.json of Mistral and Meta: the same model as its config.json, alone and in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.models.checkpoint import checkpoint_format
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.models.native_params import as_config
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.formats import WeightFormat

# Values of published files, and the parameters of their weights.
MISTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8}
LLAMA_3 = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Mistral 7B v0.3": (MISTRAL | {"vocab_size": 32768, "rope_theta": 1e6, "norm_eps": 1e-5}, 7_248_023_552),
    "Mistral Nemo": (MISTRAL | {"dim": 5120, "n_layers": 40, "vocab_size": 131072}, 12_247_782_400),
    "Mistral Small 24B": (MISTRAL | {"dim": 5120, "n_layers": 40, "hidden_dim": 32768, "vocab_size": 131072}, 23_572_403_200),
    "Mixtral 8x7B": (MISTRAL | {"vocab_size": 32000, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}, 46_702_792_704),
    "kind of all transformers": (MISTRAL | {"vocab_size": 32768, "model_type": "transformer"}, 7_248_023_552),
    "Llama 2 7B": ({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "vocab_size": -1}, 6_738_415_616),
    "Llama 2 70B": (
        {"dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8, "n_layers": 80},
        68_976_648_192,
    ),
    "Llama 3 8B": (LLAMA_3 | {"ffn_dim_multiplier": 1.3}, 8_030_261_248),
    "Llama 3.1 405B": (
        {**LLAMA_3, "dim": 16384, "n_layers": 126, "n_heads": 128, "multiple_of": 4096, "ffn_dim_multiplier": 1.2},
        405_853_388_800,
    ),
    "Llama 3.2 1B": (
        {**LLAMA_3, "dim": 2048, "n_layers": 16, "multiple_of": 256, "ffn_dim_multiplier": 1.5, "use_scaled_rope": True},
        1_235_814_400,
    ),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(case: str) -> None:
    document, parameters = PUBLISHED[case]
    assert read_huggingface_config(document, name=case).parameters() == parameters


def test_experts_behind_latent_attention_are_those_of_deepseek_v3() -> None:
    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "expert_hidden_dim": 40,
        "num_expert_groups": 1,
        "num_expert_groups_per_tok": 1,
    }
    latent = {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    sizes = {"dim": 96, "n_layers": 3, "n_heads": 6, "hidden_dim": 200, "vocab_size": 1000}
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "intermediate_size": 200,
        "vocab_size": 1000,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 40,
        "n_group": 1,
        "topk_group": 1,
    }
    native = read_huggingface_config(sizes | latent | {"moe": experts}, name="model")
    assert native.blocks == read_huggingface_config(config | latent, name="model").blocks


def test_of_a_model_that_sees_the_text_model_is_read() -> None:
    seeing = MISTRAL | {"vocab_size": 32768, "vision_encoder": {"hidden_size": 1024}}
    read = read_huggingface_config(seeing, name="model")
    assert (read.name, read.parameters()) == ("model (text decoder)", 7_248_023_552)


def test_narrow_weights_are_the_format_of_the_checkpoint() -> None:
    stored = checkpoint_format(as_config(MISTRAL | {"vocab_size": 32768, "quantization": {"qformat_weight": "fp8_e4m3"}}))
    assert stored is not None
    assert stored.weights is WeightFormat.FP8


def test_a_folder_without_a_config_is_read_by_its_params(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(MISTRAL | {"vocab_size": 32768}))
    document, name = FilesBeside(tmp_path).read_config(".")
    assert (document, name) == (MISTRAL | {"vocab_size": 32768}, tmp_path.name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert FilesBeside(tmp_path).read_config(".")[0] == {"model_type": "qwen3"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"moe_args": {"num_experts": 16}}, "give the config.json of the model"),
        ({"moe": 8}, "'moe' must be an object"),
        ({"moe": {"num_experts_per_tok": 2}}, "field 'num_experts' is missing"),
        ({"dim": "wide"}, "'dim' has the wrong type"),
        ({"hidden_dim": -1}, "'hidden_dim' is out of range"),
    ],
)
def test_bad_files_are_refused_with_a_reason(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read_huggingface_config(MISTRAL | {"vocab_size": 32768} | more, name="model")
    assert reason in str(refusal.value)
