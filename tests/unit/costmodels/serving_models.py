"""Shared by the tests of serving models and others: MAMBA."""

from __future__ import annotations

MAMBA = {
    "model_type": "jamba", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2048, "vocab_size": 32000, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 8,
    "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_dt_rank": 64, "architectures": ["JambaForCausalLM"],
}  # fmt: skip
