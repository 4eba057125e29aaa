"""Run by an interpreter that has Axolotl's wheel: the record that its configuration is checked by.

Reads a list of {"files": {name: text}, "config": name of the configuration}. Unknown keys are refused here, which Axolotl
passes over.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import yaml
from axolotl.utils.schemas.config import AxolotlInputConfig

logging.disable(logging.CRITICAL)


def answer(question):
    os.chdir(tempfile.mkdtemp())
    for name, text in question["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    document = yaml.safe_load(question["files"][question["config"]])
    fields = AxolotlInputConfig.model_fields
    unknown = sorted(set(document) - set(fields) - {field.alias for field in fields.values()})
    if unknown:
        raise ValueError(f"unknown keys: {unknown}")
    config = AxolotlInputConfig(**document)
    names = (
        "micro_batch_size gradient_accumulation_steps sequence_len bf16 gradient_checkpointing deepspeed dp_replicate_size "
        "dp_shard_size fsdp_version accelerator_config"
    )
    found = {name: getattr(config, name) for name in names.split()}
    return found | {"fsdp": config.fsdp_config.model_dump(exclude_none=True) if config.fsdp_config else None}


answers = []
for question in json.loads(sys.stdin.read()):
    try:
        answers.append(answer(question))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"[-600:]})
print("ANSWER" + json.dumps(answers, default=str))
