"""The arguments of scripts over Hugging Face's Trainer: of the Trainer itself (transformers 4.30 to 5), TRL, LLaMA-Factory and
Axolotl, whose files hold the same keys.

Sources: transformers/training_args.py; trl/trainer/sft_config.py; LLaMA-Factory, src/llamafactory/hparams;
axolotl/utils/schemas.
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
    adapter: bool | None = None
    adapter_rank: int | None = None
    adapter_targets: tuple[str, ...] | None = None
    four_bits: bool | None = None
    liger: bool | None = None
    settings_file: str | None = None
    accelerate_file: str | None = None
    fsdp_version: int | None = None
    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    cp: int | None = None


_ADAPTERS = {**dict.fromkeys(("lora", "qlora"), True), **dict.fromkeys(("full", "none", ""), False)}


def _has_adapter(text: str) -> bool:
    """Return True for adapters by name or by True; raises KeyError for other ways to train a part."""
    return _ADAPTERS[text.casefold()] if text.casefold() in _ADAPTERS else truth(text)


def _targets(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").replace("[", " ").replace("]", " ").replace('"', " ").replace("'", " ").split())


def _truth_or_auto(text: str) -> bool:
    """Return what a format's key says; Axolotl's ``auto`` takes bf16 where the device has it."""
    return text.casefold() in ("auto", "full") or truth(text)


_FOUR = 4


def _truth_or_offload(text: str) -> bool:
    """Return what the key says; ``offload`` and Unsloth's way recompute layers, and keep what they begin with elsewhere."""
    return text.casefold() in ("offload", "offload_disk", "unsloth") or truth(text)


_LENGTHS = (
    "max-seq-length",
    "max-seq-len",
    "max-length",
    "model-max-length",
    "cutoff-len",
    "block-size",
    "seq-length",
    "seq-len",
    "sequence-len",
)

HF_TRAINER = FlagTable(
    (
        Flag(("model-name-or-path", "model", "base-model", "model-id"), "model", str, is_name=True),
        Flag(("per-device-train-batch-size", "per-gpu-train-batch-size", "micro-batch-size"), "microbatch", count),
        Flag(("gradient-accumulation-steps",), "accumulation", count),
        Flag(_LENGTHS, "seq_len", count),
        Flag(("gradient-checkpointing",), "checkpointing", _truth_or_offload, optional=True),
        Flag(("disable-gradient-checkpointing",), "checkpointing", lambda text: not truth(text), means=False, optional=True),
        Flag(("bf16",), "bf16", _truth_or_auto, optional=True),
        Flag(("fp16",), "fp16", truth, optional=True),
        Flag(("optim", "optimizer"), "optimizer", str),
        Flag(("deepspeed",), "deepspeed", str, means=None, optional=True),
        Flag(("deepspeed-config",), "deepspeed_config", str),
        Flag(("fsdp",), "fsdp", str, means="full_shard", many=True, optional=True),
        Flag(("fsdp-config",), "fsdp_config", str),
        Flag(("fsdp-version",), "fsdp_version", count),
        Flag(("dp-replicate-size",), "replicate", count),
        Flag(("dp-shard-size",), "shard", count),
        Flag(("tensor-parallel-size",), "tp", count),
        Flag(("context-parallel-size", "sequence-parallel-degree"), "cp", count),
        Flag(("use-peft", "use-lora", "adapter", "finetuning-type"), "adapter", _has_adapter, optional=True),
        Flag(("lora-r", "lora-rank", "peft-lora-r"), "adapter_rank", count),
        Flag(("lora-target-modules", "lora-target"), "adapter_targets", _targets, many=True),
        Flag(("lora-target-linear",), "adapter_targets", lambda text: ("all",) if truth(text) else None),
        Flag(("load-in-4bit", "use-4bit-quantization"), "four_bits", truth, optional=True),
        Flag(("quantization-bit",), "four_bits", lambda text: count(text) == _FOUR),
        Flag(("use-liger-kernel",), "liger", truth, optional=True),
        Flag(("config",), "settings_file", str),
        Flag(("accelerate-config",), "accelerate_file", str),
    ),
    harmless={
        **dict.fromkeys(("output-dir", "dataset-name", "dataset", "data-path", "train-file", "validation-file"), True),
        **dict.fromkeys(("learning-rate", "num-train-epochs", "max-steps", "lr-scheduler-type", "warmup-ratio"), True),
        **dict.fromkeys(("warmup-steps", "weight-decay", "adam-beta1", "adam-beta2", "adam-epsilon", "max-grad-norm"), True),
        **dict.fromkeys(("logging-steps", "logging-dir", "save-steps", "save-strategy", "save-total-limit"), True),
        **dict.fromkeys(("eval-strategy", "evaluation-strategy", "eval-steps", "report-to", "run-name", "seed"), True),
        **dict.fromkeys(("per-device-eval-batch-size", "dataset-config-name", "cache-dir", "template", "stage"), True),
        **dict.fromkeys(("dataset-dir", "tokenizer-name", "config-name", "hub-model-id"), True),
        **dict.fromkeys(("logging-strategy", "local-rank", "preprocessing-num-workers", "dataset-text-field"), True),
        **dict.fromkeys(("dataloader-num-workers", "trust-remote-code", "do-train", "do-eval", "overwrite-output-dir"), True),
        **dict.fromkeys(
            ("lora-alpha", "lora-dropout", "bnb-4bit-quant-type", "bnb-4bit-compute-dtype", "quantization-type"), True
        ),
        **dict.fromkeys(("use-bnb-nested-quant", "double-quantization", "quantization-method", "lora-task-type"), True),
        **dict.fromkeys(
            ("base-model-config", "model-type", "tokenizer-type", "is-llama-derived-model", "strict", "hf-use-auth-token"), True
        ),
        **dict.fromkeys(("dataset-prepared-path", "val-set-size", "evals-per-epoch", "saves-per-epoch", "num-epochs"), True),
        **dict.fromkeys(
            ("lr-scheduler", "train-on-inputs", "debug", "early-stopping-patience", "resume-from-checkpoint"), True
        ),
        **dict.fromkeys(
            ("wandb-project", "wandb-entity", "wandb-watch", "wandb-name", "wandb-log-model", "wandb-run-id"), True
        ),
        **dict.fromkeys(("auto-resume-from-checkpoints", "save-safetensors", "save-first-step", "save-only-model"), True),
        **dict.fromkeys(
            ("max-samples", "val-size", "eval-dataset", "mixed-precision", "max-grad-value", "save-on-each-node"), True
        ),
        **dict.fromkeys(
            ("dataset-num-proc", "dataset-kwargs", "dataset-train-split", "dataset-test-split", "hub-strategy"), True
        ),
        **dict.fromkeys(
            ("log-level", "logging-nan-inf-filter", "eval-on-start", "load-best-model-at-end", "seed-workers"), True
        ),
        **dict.fromkeys(("chat-template", "eot-tokens", "adapter-path", "lora-model-dir", "mode", "cfg", "job-dir"), True),
        **dict.fromkeys(
            ("datasets", "test-datasets", "pretraining-dataset", "media-dir", "tokenized-path", "ddp-timeout"), True
        ),
        # Options of Accelerate that TRL hands on.
        **dict.fromkeys(("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port"), True),
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
        "gradient-checkpointing-kwargs": "how layers are recomputed",
        "accelerator-config": "when gradients are summed",
        "eval-accumulation-steps": "evaluation",
        "sample-packing": "sequences that are filled up, as they are taken to be",
        "eval-sample-packing": "evaluation",
        "pad-to-sequence-len": "sequences that are filled up, as they are taken to be",
        "multipack-real-batches": "sequences that are filled up, as they are taken to be",
        "packing-strategy": "sequences that are filled up, as they are taken to be",
        "flash-attention": "kernels of attention",
        "sdp-attention": "kernels of attention",
        "xformers-attention": "kernels of attention",
        "load-in-8bit": "weights of few bits",
        "freeze-vision-tower": "parts that are not trained",
        "freeze-multi-modal-projector": "parts that are not trained",
        "enable-liger-kernel": "kernels of norms and of the loss",
        "use-unsloth": "kernels",
        "lora-mlp-kernel": "kernels of adapters",
        "lora-qkv-kernel": "kernels of adapters",
        "lora-o-kernel": "kernels of adapters",
        "plugins": "kernels",
        "liger-rope": "kernels",
        "liger-rms-norm": "kernels",
        "liger-glu-activation": "kernels",
        "liger-layer-norm": "kernels",
        "liger-fused-linear-cross-entropy": "kernels of the loss",
        "fsdp-transformer-layer-cls-to-wrap": "how layers are grouped",
        "fsdp-min-num-params": "how layers are grouped",
        "split-batches": "who cuts batches",
    },
    switches=frozenset(("packing", "torch-compile", "group-by-length", "load-in-8bit")),
    sections={
        **dict.fromkeys(
            ("datasets", "test-datasets", "pretraining-dataset", "special-tokens", "tokens", "lr-scheduler-kwargs"), ""
        ),
        **dict.fromkeys(("dataloader", "wandb", "hub"), ""),
        "accelerator-config": "when gradients are summed",
        "gradient-checkpointing-kwargs": "how layers are recomputed",
        "model-init-kwargs": "how weights are loaded",
        "peft": "adapters",
    },
)
