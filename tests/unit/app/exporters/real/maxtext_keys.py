"""Keys of MaxText's base.yml by the kind of their values: those of meshes, batch, formats, checkpointing and the model.

Source: AI-Hypercomputer/maxtext e591f30c of 22 August 2026, src/maxtext/configs/base.yml. Its reader refuses
other keys; to be imported, it asks for JAX.
"""

KINDS = {
    "str": (
        "run_name model_name grad_dtype dtype quantization decoder_block weight_dtype remat_policy decoder_layer_input "
        "context mlpwi mlpwi_0 mlpwi_1 mlpwo moe_mlpwi_0 moe_mlpwi_1 moe_mlpwo query_proj key_proj value_proj kv_proj "
        "qkv_proj out_proj attention_out attention attention_type base_output_directory hardware shard_mode "
        "context_sharding dataset_type dcn_bandwidth_limit dcn_bandwidth_burst dcn_bandwidth_latency "
        "dcn_bandwidth_interface opt_type mu_dtype rope_type context_parallel_strategy context_parallel_reorder_strategy "
        "dtype_mm remat_policy_for_vit"
    ),
    "float": (
        "normalization_layer_epsilon mlp_activations_limit per_device_batch_size per_device_batch_size_start "
        "per_device_batch_size_increment learning_rate learning_rate_final_fraction gradient_clipping_threshold adam_b1 "
        "adam_b2 adam_eps adam_eps_root adam_weight_decay rope_linear_scaling_factor attention_dropout_for_audio"
    ),
    "bool": (
        "enable_checkpointing logits_via_embedding normalize_embedding_logits logits_dot_in_fp32 shard_exp_on_fsdp "
        "mlp_bias scan_pipeline_iterations scan_pipeline_repeats scan_layers_per_stage optimizer_memory_host_offload "
        "parameter_memory_host_offload scan_layers attention_bias attention_sink use_qk_clip fused_qkv fused_mlp "
        "shard_optimizer_over_data packing enable_dropout use_iota_embed rope_use_scale rope_interleave rope_truncate "
        "rope_attention_scaling rope_pairwise enable_checkpoint_cloud_logger context_parallel_load_balance use_qk_norm "
        "use_qk_norm_in_gdn"
    ),
    "int": (
        "quantization_local_shard_count global_parameter_scale base_emb_dim base_num_query_heads base_num_kv_heads "
        "base_mlp_dim base_num_decoder_layers head_dim attention_output_dim num_experts num_experts_per_tok "
        "base_moe_mlp_dim vocab_size_per_layer_input dcn_diloco_parallelism dcn_data_parallelism dcn_fsdp_parallelism "
        "dcn_fsdp_transpose_parallelism dcn_sequence_parallelism dcn_context_parallelism "
        "dcn_context_usp_ulysses_parallelism dcn_context_autoregressive_parallelism dcn_tensor_parallelism "
        "dcn_tensor_sequence_parallelism dcn_pipeline_parallelism dcn_expert_parallelism dcn_autoregressive_parallelism "
        "ici_diloco_parallelism ici_data_parallelism ici_fsdp_parallelism ici_fsdp_transpose_parallelism "
        "ici_sequence_parallelism ici_context_parallelism ici_context_usp_ulysses_parallelism "
        "ici_context_autoregressive_parallelism ici_tensor_parallelism ici_tensor_sequence_parallelism "
        "ici_autoregressive_parallelism ici_pipeline_parallelism ici_expert_parallelism num_slices vocab_size "
        "max_segments_per_seq steps learning_rate_schedule_steps max_target_length gradient_accumulation_steps "
        "rope_min_timescale rope_max_timescale rope_factor rope_theta_for_vit"
    ),
    "list": "mlp_activations adamw_mask",
}
BASE_CONFIG = "base_config"
"""The key of the file that a file is based on (pyconfig.py)."""
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}
_READS = {"bool": bool, "int": int, "float": (int, float), "str": str, "list": list}


def misfits(document):
    """The keys that base.yml has not, or whose values are of another kind."""
    for key, value in document.items():
        kind = "str" if key == BASE_CONFIG else _KIND_OF.get(key)
        if kind is None or not isinstance(value, _READS[kind]) or (isinstance(value, bool) and kind != "bool"):
            yield key
