"""Run by an interpreter that has MaxText and JAX on CPUs: the reader of its configurations, pyconfig.

Reads {"text": the file, "devices": their number, "nodes": theirs}. JAX makes as many devices of a CPU; it is
told that they lie on nodes, which GPUs say by themselves.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

QUESTION = json.loads(sys.argv[1])
os.environ |= {
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={QUESTION['devices']}",
    "JAX_PLATFORMS": "cpu",
    "DECOUPLE_GCLOUD": "TRUE",
}

from maxtext.configs import pyconfig  # noqa: E402

logging.disable(logging.CRITICAL)
NAMES = (
    "global_batch_size_to_train_on micro_batch_size_to_train_on remat_policy ici_parallelism dcn_parallelism mesh_axes "
    "shard_optimizer_over_data max_target_length num_decoder_layers emb_dim mlp_dim"
)
os.chdir(tempfile.mkdtemp())
Path("maxtext.yml").write_text(QUESTION["text"], encoding="utf-8")
config = pyconfig.initialize(["", "maxtext.yml", f"num_slices={QUESTION['nodes']}"])
print("ANSWER" + json.dumps({name: getattr(config, name) for name in NAMES.split()}))
