"""The arguments of NeMo's calls and the fields of Megatron-Core's records, which a script is held to: by their sources (ast).

Sources: nemo_toolkit 2.5.0 and megatron_core 0.16.1, wheels of PyPI. NeMo's package can't be imported without a GPU's kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

ARGUMENTS = {
    "GPTConfig": (
        "tensor_model_parallel_size pipeline_model_parallel_comm_backend pipeline_model_parallel_size "
        "virtual_pipeline_model_parallel_size sequence_parallel context_parallel_size hierarchical_context_parallel_sizes "
        "max_seqlen_per_dp_cp_rank hybrid_context_parallel expert_model_parallel_size expert_tensor_parallel_size "
        "moe_extended_tp perform_initialization use_cpu_initialization fp16 bf16 params_dtype timers "
        "finalize_model_grads_func grad_scale_func no_sync_func grad_sync_func param_sync_func deterministic_mode "
        "enable_autocast autocast_dtype num_microbatches_with_partial_activation_checkpoints gradient_accumulation_fusion "
        "async_tensor_model_parallel_allreduce use_te_rng_tracker tp_comm_overlap tp_comm_bulk_wgrad tp_comm_bulk_dgrad "
        "tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag tp_comm_atomic_ag "
        "tp_comm_split_rs tp_comm_atomic_rs cross_entropy_loss_fusion cross_entropy_fusion_impl "
        "tp_comm_overlap_disable_qkv tp_comm_overlap_disable_fc1 tp_comm_bootstrap_backend "
        "overlap_moe_expert_parallel_comm delay_wgrad_compute ep_overlap_early_attn_memory_release pipeline_dtype "
        "variable_seq_lengths overlap_p2p_comm batch_p2p_comm batch_p2p_sync use_ring_exchange_p2p "
        "deallocate_pipeline_outputs defer_embedding_wgrad_compute wgrad_deferral_limit overlap_p2p_comm_warmup_flush "
        "microbatch_group_size_per_vp_stage mtp_standalone cpu_offloading cpu_offloading_num_layers "
        "_cpu_offloading_context cpu_offloading_activations cpu_offloading_weights cpu_offloading_double_buffering "
        "barrier_with_L1_time num_layers mtp_num_layers mtp_loss_scaling_factor num_layers_in_first_pipeline_stage "
        "num_layers_in_last_pipeline_stage pipeline_model_parallel_layout account_for_embedding_in_pipeline_split "
        "account_for_loss_in_pipeline_split hidden_size num_attention_heads attention_backend softmax_scale softmax_type "
        "num_query_groups ffn_hidden_size kv_channels hidden_dropout attention_dropout fp32_residual_connection "
        "apply_residual_connection_post_layernorm layernorm_epsilon layernorm_zero_centered_gamma add_bias_linear "
        "add_qkv_bias gated_linear_unit activation_func activation_func_fp8_input_store glu_linear_offset "
        "activation_func_clamp_value num_moe_experts rotary_interleaved window_size window_attn_skip_freq normalization "
        "qk_layernorm qk_l2_norm qk_clip qk_clip_alpha qk_clip_threshold log_max_attention_logit attention_output_gate "
        "test_mode calculate_per_token_loss multi_latent_attention no_rope_freq experimental_attention_variant "
        "dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk dsa_indexer_loss_coeff dsa_indexer_use_sparse_loss "
        "linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
        "linear_num_value_heads init_method output_layer_init_method init_method_std embedding_init_method "
        "embedding_init_method_std init_model_with_meta_device apply_query_key_layer_scaling attention_softmax_in_fp32 "
        "disable_bf16_reduced_precision_matmul bias_activation_fusion masked_softmax_fusion persist_layer_norm "
        "memory_efficient_layer_norm bias_dropout_fusion apply_rope_fusion use_fused_weighted_squared_relu "
        "fused_single_qkv_rope recompute_granularity recompute_method recompute_num_layers distribute_saved_activations "
        "recompute_modules fp8 fp8_recipe fp8_param fp8_quantizer_factory fp8_margin fp8_interval fp8_amax_history_len "
        "fp8_amax_compute_algo fp8_wgrad fp8_dot_product_attention fp8_multi_head_attention tp_only_amax_red "
        "first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 use_kitchen use_kitchen_attention "
        "kitchen_attention_backend fp4 fp4_recipe fp4_param fp4_quantizer_factory moe_shared_expert_intermediate_size "
        "moe_shared_expert_gate moe_shared_expert_overlap moe_layer_freq moe_ffn_hidden_size "
        "moe_router_load_balancing_type moe_router_topk moe_enable_routing_replay moe_router_topk_limited_devices "
        "moe_router_padding_for_quantization moe_router_padding_for_fp8 moe_router_num_groups moe_router_group_topk "
        "moe_router_pre_softmax moe_router_topk_scaling_factor moe_router_score_function moe_router_dtype "
        "moe_router_enable_expert_bias moe_router_bias_update_rate moe_router_force_load_balancing moe_grouped_gemm "
        "moe_use_legacy_grouped_gemm moe_aux_loss_coeff moe_z_loss_coeff moe_input_jitter_eps moe_token_dropping "
        "moe_token_dispatcher_type moe_enable_deepep moe_flex_dispatcher_backend moe_per_layer_logging "
        "moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop_policy moe_layer_recompute "
        "moe_permute_fusion moe_router_fusion moe_apply_probs_on_input moe_latent_size moe_deepep_num_sms "
        "moe_hybridep_num_sms cp_comm_type enable_cuda_graph cuda_graph_use_single_mempool "
        "cuda_graph_retain_backward_graph cuda_graph_warmup_steps external_cuda_graph cuda_graph_impl cuda_graph_scope "
        "clone_scatter_output_in_embedding disable_parameter_transpose_cache config_logger_dir flash_decode "
        "batch_invariant_mode use_te_activation_func inference_rng_tracker inference_sampling_seed symmetric_ar_type "
        "use_inference_optimized_layers inference_fuse_tp_communication mrope_section is_hybrid_model mamba_state_dim "
        "mamba_head_dim mamba_num_groups mamba_num_heads use_mamba_mem_eff_path mlp_chunks_for_prefill "
        "heterogeneous_block_specs hetereogenous_dist_checkpoint quant_recipe transformer_impl "
        "fine_grained_activation_offloading offload_modules min_offloaded_tensor_size fp16_lm_cross_entropy "
        "parallel_output share_embeddings_and_output_weights make_vocab_size_divisible_by position_embedding_type "
        "rotary_base rotary_percent seq_len_interpolation_factor seq_length scatter_embedding_sequence_parallel "
        "use_transformer_engine_full_layer_spec transformer_layer_spec forward_step_fn data_step_fn generation_config "
        "vocab_size tp_comm_overlap_cfg"
    ),
    "GPTModel": "config optim tokenizer model_transform model_context_managers",
    "MegatronStrategy": (
        "tensor_model_parallel_size pipeline_model_parallel_size pipeline_model_parallel_comm_backend "
        "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage virtual_pipeline_model_parallel_size "
        "microbatch_group_size_per_vp_stage context_parallel_size sequence_parallel expert_model_parallel_size "
        "moe_extended_tp expert_tensor_parallel_size encoder_tensor_model_parallel_size "
        "encoder_pipeline_model_parallel_size account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
        "data_sampler parallel_devices cluster_environment checkpoint_io find_unused_parameters ckpt_load_optimizer "
        "ckpt_save_optimizer ckpt_load_main_params ddp fsdp lazy_init pipeline_dtype use_te_rng_tracker use_sharp "
        "save_ckpt_format ckpt_async_save ckpt_torch_dist_multiproc ckpt_assume_constant_structure ckpt_parallel_save "
        "ckpt_parallel_save_within_dp ckpt_parallel_load ckpt_parallel_save_optim ckpt_load_directly_on_device "
        "ckpt_load_strictness setup_optimizers init_model_parallel replace_progress_bar progress_interval restore_config "
        "megatron_log_level use_tp_pp_dp_mapping num_distributed_optimizer_instances nccl_communicator_config_path "
        "pipeline_model_parallel_layout use_gloo_process_groups"
    ),
    "DistributedDataParallelConfig": (
        "grad_reduce_in_fp32 overlap_grad_reduce overlap_param_gather align_param_gather use_distributed_optimizer "
        "num_distributed_optimizer_instances check_for_nan_in_grad check_for_large_grads bucket_size "
        "pad_buckets_for_high_nccl_busbw reduce_scatter_with_fp32_accumulation average_in_collective fp8_param_gather "
        "reuse_grad_buf_for_mxfp8_param_ag use_megatron_fsdp use_custom_fsdp data_parallel_sharding_strategy "
        "gradient_reduce_div_fusion suggested_communication_unit_size preserve_fp32_weights keep_fp8_transpose_cache "
        "nccl_ub fsdp_double_buffer outer_dp_sharding_strategy disable_symmetric_registration fsdp_manual_registration "
        "delay_wgrad_compute"
    ),
    "OptimizerConfig": (
        "lr min_lr decoupled_lr decoupled_min_lr weight_decay apply_wd_to_qk_layernorm fp8_recipe fp16 bf16 "
        "reuse_grad_buf_for_mxfp8_param_ag params_dtype use_precision_aware_optimizer store_param_remainders "
        "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype optimizer loss_scale initial_loss_scale "
        "min_loss_scale loss_scale_window hysteresis adam_beta1 adam_beta2 adam_eps decoupled_weight_decay sgd_momentum "
        "muon_momentum muon_split_qkv muon_use_nesterov muon_scale_mode muon_fp32_matmul_prec muon_num_ns_steps "
        "muon_tp_mode muon_extra_scale_factor use_distributed_optimizer overlap_param_gather "
        "overlap_param_gather_with_optimizer_step optimizer_cpu_offload optimizer_offload_fraction "
        "use_torch_optimizer_for_cpu_offload overlap_cpu_optimizer_d2h_h2d pin_cpu_grads pin_cpu_params clip_grad "
        "log_num_zeros_in_grad barrier_with_L1_time timers config_logger_dir"
    ),
    "MegatronOptimizerModule": "config lr_scheduler no_weight_decay_cond scale_lr_cond lr_mult",
    "MockDataModule": (
        "seq_length tokenizer micro_batch_size global_batch_size rampup_batch_size num_train_samples num_val_samples "
        "num_test_samples num_workers pin_memory persistent_workers create_attention_mask vocab_file merges_file"
    ),
    "MegatronMixedPrecision": (
        "precision params_dtype pipeline_dtype autocast_dtype autocast_enabled grad_reduce_in_fp32 fp8 fp8_recipe "
        "first_last_layers_bf16 fp8_margin fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad fp8_dot_product_attention "
        "fp8_multi_head_attention fp8_params fp8_param_gather fp16_loss_scale fp16_initial_loss_scale fp16_min_loss_scale "
        "fp16_loss_scale_window fp16_hysteresis num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 "
        "reuse_grad_buf_for_mxfp8_param_ag"
    ),
    "MegatronCommOverlapCallback": (
        "tp_comm_overlap tp_comm_overlap_cfg tp_comm_bootstrap_backend overlap_p2p_comm batch_p2p_comm "
        "overlap_grad_reduce overlap_param_gather overlap_param_gather_with_optimizer_step align_param_gather bucket_size "
        "defer_embedding_wgrad_compute wgrad_deferral_limit"
    ),
    "NullTokenizer": "vocab_size",
    # Of Lightning's Trainer, those that are written.
    "Trainer": (
        "accelerator callbacks devices enable_checkpointing limit_val_batches log_every_n_steps logger max_steps num_nodes "
        "num_sanity_val_steps plugins strategy use_distributed_sampler"
    ),
    "pretrain": "model data trainer log resume optim",
}


def unknown(script: str) -> Iterator[str]:
    """The arguments of a script that no call has, and the calls that are not known."""
    for call in (node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")[2]
        known = ARGUMENTS.get(name, "").split()
        yield from (f"{name}.{each.arg}" for each in call.keywords if each.arg not in known)
