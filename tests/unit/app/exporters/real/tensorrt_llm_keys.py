"""The keys that trtllm-serve's file of settings may have, with their types, as LlmArgs of TensorRT-LLM 1.2.1 declares them.

Its package loads libraries of a GPU when it is imported, so the table stands here; LlmArgs refuses any other key. Reads a
list of YAML texts; answers the wrong keys of each.
"""

import json
import sys

import yaml

KEYS = {
    "dtype": str,
    "enable_chunked_prefill": bool,
    "enable_attention_dp": bool,
    "context_parallel_size": int,
    "cp_config": {"cp_type": str, "tokens_per_block": int},
    "moe_tensor_parallel_size": int,
    "moe_config": {"load_balancer": {"num_slots": int, "layer_updates_per_iter": int}},
    "pp_partition": list,
    "gpus_per_node": int,
    "kv_cache_config": {"free_gpu_memory_fraction": float, "dtype": str},
    "disable_overlap_scheduler": bool,
    "speculative_config": {
        "decoding_type": str,
        "num_nextn_predict_layers": int,
        "max_draft_len": int,
        "max_matching_ngram_size": int,
        "speculative_model": str,
    },
}


def wrong(document, keys, place=""):
    """Return the keys that are not in the table, or have values of another type."""
    found = []
    for key, value in document.items():
        known = keys.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            found += wrong(value, known, f"{place}{key}.")
        elif not isinstance(known, type) or type(value) is not known:
            found.append(f"{place}{key}")
    return found


print("ANSWER" + json.dumps([wrong(yaml.safe_load(text), KEYS) for text in json.loads(sys.stdin.read())]))
