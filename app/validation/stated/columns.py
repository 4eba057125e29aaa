"""The columns of a table of measured training runs."""

from __future__ import annotations

RUN_COLUMNS = (
    "source_id",
    "source",
    "model",
    "n_layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "n_experts",
    "top_k",
    "params_b",
    "gpu",
    "gpu_mem_gb",
    "peak_tflops_bf16",
    "n_gpus",
    "gpus_per_node",
    "intra_node_bw",
    "inter_node_bw",
    "precision",
    "seq_len",
    "micro_batch",
    "global_batch",
    "dp",
    "zero_stage_or_fsdp",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "recompute",
    "schedule",
    "flash_attention",
    "notes",
    "quality",
    "arch",
    "group",
    "licence",
)
"""Columns of what was run."""

RESULT_COLUMNS = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "peak_mem_gb",
    "status",
)
"""Columns of what came of it. No prediction sees them."""

COLUMNS = (*RUN_COLUMNS, *RESULT_COLUMNS)

ETP = "etp"
"""Ranks that share an expert. Tables do not have this column; a mapping may state it."""

STATED_COLUMNS = (*(name for name in RUN_COLUMNS if name not in ("source_id", "quality", "group", "licence")), ETP)
"""Columns that a mapping may fill where a row leaves them empty."""
