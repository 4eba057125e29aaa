"""Models of transformers whose traces are test data: run as a script where PyTorch is installed, it writes them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRACES = Path(__file__).parent / "traces"
SEQ_LEN, DECODER_SEQ_LEN, BATCH = 64, 48, 2

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 192, "n_head": 6, "vocab_size": 1024}
T5 = {
    "model_type": "t5",
    "d_model": 256,
    "d_kv": 32,
    "d_ff": 1024,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 8,
    "vocab_size": 2048,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 128,
    "intermediate_size": 448,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1024,
}
MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 32,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "vocab_size": 1024,
}
VIT = {"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 768}
RESNET = {"model_type": "resnet", "depths": [2, 2, 2, 2]}
T5_11B = {
    "model_type": "t5",
    "d_model": 1024,
    "d_kv": 128,
    "d_ff": 65536,
    "num_layers": 24,
    "num_decoder_layers": 24,
    "num_heads": 128,
    "vocab_size": 32128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-eager": LLAMA | {"num_hidden_layers": 2},
    "gpt2": GPT2,
    "t5": T5,
    "mixtral": MIXTRAL,
    "mixtral-batched": MIXTRAL,
    "mamba2": MAMBA2,
    "mamba2-padded": MAMBA2 | {"chunk_size": 24, "num_hidden_layers": 1},
    "vit": VIT,
    "resnet": RESNET,
}
DEEP: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "gpt2-xl": {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25},
    "t5-11b": T5_11B,
    "mixtral-8x7b": MIXTRAL
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "mamba2-2.7b": MAMBA2
    | {
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "chunk_size": 256,
        "vocab_size": 50288,
    },
    "vit-huge": {
        "model_type": "vit",
        "hidden_size": 1280,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "intermediate_size": 5120,
        "patch_size": 14,
        "num_labels": 1000,
    },
    "resnet-152": {"model_type": "resnet", "depths": [3, 8, 36, 3], "num_labels": 1000},
}
"""Models at their own depth, traced with the lengths of ``TOKENS``."""
TOKENS = {"llama-3.1-8b": (4096, 4096), "gpt2-xl": (1024, 1024), "t5-11b": (512, 512)}
TOKENS |= dict.fromkeys(("mixtral-8x7b", "qwen3-30b-a3b", "mamba2-2.7b"), (4096, 4096))


def program(name: str) -> Any:
    """The exported program of a model, its weights on the meta device."""
    import torch
    import transformers

    config = {**CONFIGS, **DEEP}[name]
    kind = config["model_type"]
    given = {key: value for key, value in config.items() if key != "model_type"}
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "mamba2": (transformers.Mamba2Config, transformers.Mamba2ForCausalLM),
        "vit": (transformers.ViTConfig, transformers.ViTForImageClassification),
        "resnet": (transformers.ResNetConfig, transformers.ResNetForImageClassification),
    }
    config_class, model_class = classes[kind]
    if name.endswith("-eager"):
        given["attn_implementation"] = "eager"
    if kind == "t5":
        given |= {"decoder_start_token_id": 0, "pad_token_id": 0}
    if name.endswith("-batched"):
        given["experts_implementation"] = "batched_mm"
    if kind not in ("vit", "resnet"):
        given["use_cache"] = False

    def tokens(*sizes: int) -> torch.Tensor:
        return torch.zeros(*sizes, dtype=torch.long, device="meta")

    with torch.device("meta"):
        model = model_class(config_class(**given))
        if kind in ("vit", "resnet"):
            inputs = {"pixel_values": torch.zeros(BATCH, 3, 224, 224), "labels": tokens(BATCH)}
        else:
            read, written = TOKENS.get(name, (SEQ_LEN, DECODER_SEQ_LEN if kind == "t5" else SEQ_LEN))
            inputs = {"input_ids": tokens(BATCH, read), "labels": tokens(BATCH, written)}
        return torch.export.export(model, (), inputs)


if __name__ == "__main__":
    from meshwright.app.models.traced.torch_export import write_traced_graph

    for model_name in (*CONFIGS, *DEEP):
        write_traced_graph(program(model_name), TRACES / f"{model_name}.json.gz")
