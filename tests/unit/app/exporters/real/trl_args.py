"""Run by an interpreter that has TRL: the parser of ``trl sft``, its configuration file read, on a CPU.

Reads a list of {"files": {name: text}, "words": arguments of ``trl sft``}; what its launcher is given is handed back.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from trl.scripts.sft import make_parser


def answer(question):
    os.chdir(tempfile.mkdtemp())
    for name, text in question["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    script, args, model, *rest = make_parser(prog="trl sft").parse_args_and_config(
        [*question["words"], "--use_cpu", "True"], return_remaining_strings=True, separate_remaining_strings=True
    )
    of_config, launched = rest[-2:]
    if of_config:
        raise ValueError(f"unknown keys: {of_config}")
    names = "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 max_length packing max_steps"
    found = {name: getattr(args, name) for name in names.split()}
    found |= {"model": model.model_name_or_path, "dataset": script.dataset_name, "launched": launched}
    return found | {"accelerator_config": args.accelerator_config.to_dict()}


answers = []
for question in json.loads(sys.stdin.read()):
    try:
        answers.append(answer(question))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"[-600:]})
print("ANSWER" + json.dumps(answers, default=str))
