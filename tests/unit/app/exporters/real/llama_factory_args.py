"""Run by an interpreter that has LLaMA-Factory's wheel: its parser of a training run's arguments, on a CPU.

Reads a list of {"files": {name: text}, "config": name of the configuration}.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

# It names transformers up to 5.6; its records are the same.
os.environ["DISABLE_VERSION_CHECK"] = "1"

import yaml
from llamafactory.hparams import parser


def answer(question):
    os.chdir(tempfile.mkdtemp())
    for name, text in question["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    document = yaml.safe_load(question["files"][question["config"]])
    # Devices, bf16 and processes are the machine's; this one has none of them.
    model, data, training, finetuning, _ = parser._parse_train_args(document | {"use_cpu": True})
    names = "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 deepspeed max_steps"
    found = {name: getattr(training, name) for name in names.split()}
    found |= {
        "cutoff_len": data.cutoff_len,
        "packing": data.packing,
        "stage": finetuning.stage,
        "type": finetuning.finetuning_type,
    }
    found |= {"disable_gradient_checkpointing": model.disable_gradient_checkpointing}
    return found | {"accelerator_config": training.accelerator_config.to_dict()}


answers = []
for question in json.loads(sys.stdin.read()):
    try:
        answers.append(answer(question))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"[-600:]})
print("ANSWER" + json.dumps(answers, default=str))
