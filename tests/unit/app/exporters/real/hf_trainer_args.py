"""Run by an interpreter that has transformers: HfArgumentParser over TrainingArguments, on a CPU.

Reads a list of {"files": {name: text}, "words": arguments of the script}; words of other records of the script are passed over,
and named.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from transformers import HfArgumentParser, TrainingArguments

SCRIPTS_OWN = {"--model_name_or_path", "--dataset_name", "--dataset_config_name", "--block_size"}
"""Arguments of run_clm.py's own records (ModelArguments and DataTrainingArguments)."""


def answer(question):
    os.chdir(tempfile.mkdtemp())
    for name, text in question["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    # A process of a CPU has no bf16 of a GPU and starts no ranks.
    args, rest = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [*question["words"], "--use_cpu", "True"], return_remaining_strings=True
    )
    unknown = [word for word in rest if word.startswith("--") and word not in SCRIPTS_OWN]
    if unknown:
        raise ValueError(f"unknown arguments: {unknown}")
    names = (
        "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 fp16 fsdp fsdp_config deepspeed "
        "fsdp_plugin_args max_steps"
    )
    found = {name: getattr(args, name) for name in names.split()}
    found["accelerator_config"] = args.accelerator_config.to_dict()
    found["zero_stage"] = args.hf_deepspeed_config.config["zero_optimization"]["stage"] if args.deepspeed else None
    return found


answers = []
for question in json.loads(sys.stdin.read()):
    try:
        answers.append(answer(question))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"[-600:]})
print("ANSWER" + json.dumps(answers, default=str))
