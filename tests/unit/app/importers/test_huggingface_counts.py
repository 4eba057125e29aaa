"""Parameter counts: a golden table that always runs, and transformers itself where it is installed.

golden_models.json: config.json documents (class defaults, and each field that changes the count) with the count that
transformers 5.23.0 gives on the meta device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.models.catalog import model, model_document, model_names
from meshwright.app.models.huggingface import TEXT_MODELS, read_huggingface_config, supported_model_types

HERE = Path(__file__).parent
GOLDEN: dict[str, dict[str, Any]] = json.loads((HERE / "golden_models.json").read_text(encoding="utf-8"))
SHARED_CONFIGS = HERE.parents[4] / "shared" / "data" / "hf_configs"

# Class defaults that no model can run with: DeepSeek-V2's leave the number of experts of a token open.
UNUSABLE_CONFIGS = {"default__DeepseekV2"}
# model_types that transformers lacks, and whose classes such files carry.
SAME_AS = {
    "kimi_k2": "deepseek_v3",
    "deepseek_ref": "deepseek_v4",
    "mimo": "qwen2",
    "minimax_m3": "minimax_m3_vl_text",
    "exaone4_5_text": "exaone4",
    # The thinker of Qwen3-Omni has the layers of Qwen3-MoE.
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen2_5_omni_text": "qwen2",
}
# Kinds that it lacks: of Nemotron-NAS the count is that of the published checkpoint's index of tensors, of the others our own,
# which test_huggingface_wrappers compares with a kind of the same layers where there is one.
WITHOUT_A_CLASS = {
    "nemotron-nas",
    "Yi",
    "aquila",
    "bailing_moe",
    "bailing_moe_v2",
    "baichuan",
    "chatglm",
    "deepseek",
    "exaone",
    "hunyuan",
    "internlm",
    "internlm2",
    "internvl_chat",
    "minicpm",
    "minimax_m1",
    "minimax_text_01",
    "orion",
    "qwen",
    "xverse",
}
# Text models that AutoModelForCausalLM does not know, and the class that is one.
CLASS_OF = {"mllama_text_model": "MllamaForCausalLM"}
PARTS_OF_A_WHOLE = {"glm4v", "glm4v_moe", "kimi_k25", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "step3p7"}
WHOLE_OF = {"step3p5": "step3p7"}
TOWERS = ("visual.", "vision_tower.", "mm_projector.", "vision_model.", "multi_modal_projector.")


@pytest.mark.parametrize("case", GOLDEN)
def test_count_is_the_golden_one(case: str) -> None:
    graph = read_huggingface_config(GOLDEN[case]["config"], name=case)
    assert graph.parameters() == GOLDEN[case]["parameters"]


def test_every_family_is_in_the_golden_table() -> None:
    assert {entry["config"]["model_type"] for entry in GOLDEN.values()} == set(supported_model_types())


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_count_is_that_of_transformers(case: str) -> None:
    assert _transformers_count(GOLDEN[case]["config"]) == GOLDEN[case]["parameters"]


@pytest.mark.slow_beyond(20)
@pytest.mark.parametrize("name", model_names())
def test_catalogue_model_counts_as_transformers_does(name: str) -> None:
    assert model(name).parameters() == _transformers_count(model_document(name))


@pytest.mark.slow
def test_real_files_count_as_transformers_does() -> None:
    if not SHARED_CONFIGS.is_dir():
        pytest.skip("no real config.json files beside this checkout (../shared/data/hf_configs)")
    documents = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in SHARED_CONFIGS.glob("*.json")
        if path.stem not in UNUSABLE_CONFIGS
    }
    ours = {
        stem: read_huggingface_config(document, name=stem).parameters()
        for stem, document in documents.items()
        if document.get("model_type") in supported_model_types()
    }
    assert ours
    assert ours == {stem: _transformers_count(documents[stem]) for stem in ours}


def _transformers_count(document: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds on the meta device, tied ones once; skips where it can't."""
    torch = pytest.importorskip("torch", reason="needs torch and transformers (pip install torch transformers)")
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install transformers)")
    kept = {key: value for key, value in document.items() if key not in ("quantization_config", "auto_map", "notes")}
    if kept["model_type"] in WITHOUT_A_CLASS:
        pytest.skip(f"transformers has no class of {kept['model_type']}")
    model_type = SAME_AS.get(kept["model_type"], kept["model_type"])
    if model_type in WHOLE_OF:
        kept, model_type = {"text_config": kept}, WHOLE_OF[model_type]
    config = transformers.CONFIG_MAPPING[model_type].from_dict({**kept, "model_type": model_type})
    architectures = kept.get("architectures")
    # The text decoders of models of text and images that transformers builds as a part of the whole alone.
    builds_whole = model_type.removesuffix("_text") in PARTS_OF_A_WHOLE
    if builds_whole and model_type.endswith("_text"):
        config = transformers.CONFIG_MAPPING[model_type.removesuffix("_text")].from_dict({"text_config": kept})
    with torch.device("meta"):
        if builds_whole:
            model = transformers.AutoModelForImageTextToText.from_config(config)
        elif config.get_text_config().model_type in CLASS_OF:
            model = getattr(transformers, CLASS_OF[config.get_text_config().model_type])._from_config(config.get_text_config())
        elif architectures and model_type not in TEXT_MODELS:
            model = getattr(transformers, architectures[0])._from_config(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config.get_text_config())
    counted = {name.removeprefix("model."): parameter.numel() for name, parameter in model.named_parameters()}
    return sum(count for name, count in counted.items() if not builds_whole or not name.startswith(TOWERS))
