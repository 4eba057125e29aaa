"""The arguments of scripts over Hugging Face's Trainer: of the Trainer itself (transformers 4.30 to 5), TRL, LLaMA-Factory.

Source: transformers/training_args.py; trl/trainer/sft_config.py; LLaMA-Factory, src/llamafactory/hparams.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth


@dataclass(frozen=True, slots=True)
class TrainerArguments:
    """The arguments that say something of a plan or its work; None where a script is given none."""

    model: str | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    seq_len: int | None = None
    checkpointing: bool | None = None
    bf16: bool | None = None
    fp16: bool | None = None
    optimizer: str | None = None
    deepspeed: str | None = None
    deepspeed_config: str | None = None
    fsdp: str | None = None
    fsdp_config: str | None = None
    adapter: bool | str | None = None
    liger: bool | None = None


_LENGTHS = (
    "max-seq-length",
    "max-seq-len",
    "max-length",
    "model-max-length",
    "cutoff-len",
    "block-size",
    "seq-length",
    "seq-len",
)

HF_TRAINER = FlagTable(
    (
        Flag(("model-name-or-path", "model", "base-model", "model-id"), "model", str, is_name=True),
        Flag(("per-device-train-batch-size", "per-gpu-train-batch-size", "micro-batch-size"), "microbatch", count),
        Flag(("gradient-accumulation-steps",), "accumulation", count),
        Flag(_LENGTHS, "seq_len", count),
        Flag(("gradient-checkpointing",), "checkpointing", truth, optional=True),
        Flag(("bf16",), "bf16", truth, optional=True),
        Flag(("fp16",), "fp16", truth, optional=True),
        Flag(("optim",), "optimizer", str),
        Flag(("deepspeed",), "deepspeed", str, means=None, optional=True),
        Flag(("deepspeed-config",), "deepspeed_config", str),
        Flag(("fsdp",), "fsdp", str, many=True),
        Flag(("fsdp-config",), "fsdp_config", str),
        Flag(("use-peft",), "adapter", truth, optional=True),
        Flag(("use-liger-kernel",), "liger", truth, optional=True),
    ),
    harmless={
        **dict.fromkeys(
            ("output-dir", "dataset-name", "dataset", "data-path", "train-file", "validation-file", "config"), True
        ),
        **dict.fromkeys(("learning-rate", "num-train-epochs", "max-steps", "lr-scheduler-type", "warmup-ratio"), True),
        **dict.fromkeys(("warmup-steps", "weight-decay", "adam-beta1", "adam-beta2", "adam-epsilon", "max-grad-norm"), True),
        **dict.fromkeys(("logging-steps", "logging-dir", "save-steps", "save-strategy", "save-total-limit"), True),
        **dict.fromkeys(("eval-strategy", "evaluation-strategy", "eval-steps", "report-to", "run-name", "seed"), True),
        **dict.fromkeys(("per-device-eval-batch-size", "dataset-config-name", "cache-dir", "template", "stage"), True),
        **dict.fromkeys(("dataset-dir", "finetuning-type", "tokenizer-name", "config-name", "hub-model-id"), True),
        **dict.fromkeys(("logging-strategy", "local-rank", "preprocessing-num-workers", "dataset-text-field"), True),
        **dict.fromkeys(("dataloader-num-workers", "trust-remote-code", "do-train", "do-eval", "overwrite-output-dir"), True),
        **dict.fromkeys(("push-to-hub", "logging-first-step", "overwrite-cache", "plot-loss"), False),
    },
    not_priced={
        "attn-implementation": "kernels of attention",
        "flash-attn": "kernels of attention",
        "packing": "sequences that are filled up, as they are taken to be",
        "torch-compile": "how layers are compiled",
        "torch-dtype": "formats of weights",
        "dtype": "formats of weights",
        "tf32": "formats of products",
        "neftune-noise-alpha": "noise on the token table",
        "group-by-length": "sequences of equal lengths",
        "ddp-timeout": "nothing but how long a rank waits",
        "gradient-checkpointing-kwargs": "how layers are recomputed",
        "eval-accumulation-steps": "evaluation",
        "lora-r": "adapters",
        "lora-rank": "adapters",
        "lora-alpha": "adapters",
        "lora-target": "adapters",
        "lora-target-modules": "adapters",
        "load-in-4bit": "weights of few bits",
        "load-in-8bit": "weights of few bits",
    },
    switches=frozenset(("packing", "torch-compile", "group-by-length", "load-in-4bit", "load-in-8bit")),
)
