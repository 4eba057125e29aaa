"""Run by an interpreter that has Accelerate: its launch parser, the environment that it hands on, and the plugins made of it.

Reads a list of {"files": {name: text}, "words": arguments of ``accelerate launch``}.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

CHECKED = "deepspeed_config_file zero3_init_flag num_machines num_processes machine_rank main_process_ip main_process_port"


def answer(question):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    for name, text in question["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    args = launch_command_parser().parse_args(question["words"])
    # _validate_launch_command asks the machine for devices, of which there are none here.
    args.gpu_ids = "all"
    args, _, _ = _validate_launch_command(args)
    found = {name: getattr(args, name) for name in CHECKED.split()}
    found |= {name: getattr(args, name) for name in ("use_fsdp", "use_deepspeed", "multi_gpu", "mixed_precision")}
    environment = prepare_multi_gpu_env(args)
    found["nproc_per_node"] = args.nproc_per_node
    kept = dict(os.environ)
    os.environ.update(environment)
    try:
        if args.use_fsdp:
            plugin = FullyShardedDataParallelPlugin()
            names = "fsdp_version reshard_after_forward activation_checkpointing cpu_offload"
            found["fsdp"] = {name: getattr(plugin, name) for name in names.split()}
            found["fsdp"]["cpu_offload"] = bool(found["fsdp"]["cpu_offload"])
        if args.use_parallelism_config:
            mesh = ParallelismConfig()
            found["mesh"] = {"dp_replicate": mesh.dp_replicate_size, "dp_shard": mesh.dp_shard_size, "all": mesh.total_size}
        if args.use_deepspeed:
            config = json.loads(Path(args.deepspeed_config_file).read_text(encoding="utf-8"))
            plugin = DeepSpeedPlugin(hf_ds_config=config)
            found["deepspeed"] = {"zero_stage": plugin.zero_stage, "accumulation": plugin.gradient_accumulation_steps}
    finally:
        os.environ.clear()
        os.environ.update(kept)
    return found


answers = []
for question in json.loads(sys.stdin.read()):
    try:
        answers.append(answer(question))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"[-600:]})
print("ANSWER" + json.dumps(answers))
