"""The fields of nanotron's records, which its reader holds a file to (dacite, strict); main of 7 April 2026.

Source: huggingface/nanotron 2411b022, src/nanotron/config: config.py, parallelism_config.py, models_config.py. PyPI's 0.4 has
older records, and nothing of main can be imported without Triton and flash-attn.
"""

RECORDS = {
    "": "general parallelism model tokenizer checkpoints logging metrics_logging tokens optimizer data_stages",
    "general": "project run seed step consumed_train_samples benchmark_csv_path ignore_sanity_checks",
    "parallelism": "dp pp tp pp_engine tp_mode tp_linear_async_communication recompute_layer tp_recompute_allgather "
    "expert_parallel_size context_parallel_size",
    "model": "model_config init_method dtype make_vocab_size_divisible_by ddp_bucket_cap_mb",
    "model.init_method": "std scaling_method",
    "model.model_config": "bos_token_id eos_token_id hidden_act hidden_size initializer_range intermediate_size "
    "is_qwen2_config max_position_embeddings num_attention_heads num_hidden_layers num_key_value_heads pad_token_id "
    "pretraining_tp rms_norm_eps rope_scaling rope_theta rope_interleaved rope_seq_len_interpolation_factor "
    "tie_word_embeddings use_cache vocab_size _attn_implementation flex_attention_mask attention_bias sliding_window_size "
    "z_loss_enabled z_loss_coefficient no_rope_layer _fused_rotary_emb _fused_rms_norm _use_qkv_packed _use_doc_masking "
    "log_attn_probs ring_attn_heads_k_stride moe_config",
    "tokens": "sequence_length train_steps micro_batch_size batch_accumulation_per_replica val_check_interval "
    "limit_val_batches limit_test_batches",
    "optimizer": "optimizer_factory zero_stage weight_decay clip_grad accumulate_grad_in_fp32 learning_rate_scheduler "
    "weight_decay_exclude_named_params",
    "optimizer.optimizer_factory": "adam_eps adam_beta1 adam_beta2 torch_adam_is_fused name",
    "optimizer.learning_rate_scheduler": "learning_rate lr_warmup_steps lr_warmup_style lr_decay_style lr_decay_steps "
    "lr_decay_starting_step min_decay_lr",
    "checkpoints": "checkpoints_path checkpoint_interval save_initial_state save_final_state resume_checkpoint_path "
    "load_lr_scheduler load_optimizer checkpoints_path_is_shared_file_system",
    "logging": "log_level log_level_replica iteration_step_info_interval",
    "metrics_logging": "log_level log_detail_interval",
}


def unknown(document, of=""):
    """The keys that no record has, with their places."""
    for key, value in document.items():
        place = f"{of}.{key}".lstrip(".")
        if key not in RECORDS[of].split():
            yield place
        elif isinstance(value, dict):
            yield from unknown(value, place)
