"""The arguments of a script over Hugging Face's Trainer, which DeepSpeed, Accelerate and torchrun start alike, and the files of
TRL, Axolotl and LLaMA-Factory, which hold such arguments.

Sources: transformers/training_args.py (4.30 to 5); trl/trainer/sft_config.py; LLaMA-Factory, src/llamafactory/hparams;
axolotl/utils/schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.app.launching.parts.flag import Flag, FlagTable, GivenFlag, ParsedCommand, ShortNames, count, truth
from meshwright.app.launching.parts.launch_files import config_of, words_of_config
from meshwright.app.launching.parts.methods import method_of, not_counted
from meshwright.app.launching.parts.start import Start
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.adapter import AdapterKind, BaseFormat
from meshwright.costmodels.model.implementation import AdapterTarget
from meshwright.solver.problem.choices import Launcher


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
    eight_bits: bool | None = None
    base_bits: int | None = None
    dora: bool | None = None
    liger: bool | None = None
    settings_file: str | None = None
    accelerate_file: str | None = None
    method: str | None = None
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


_OF_BITS = {4: BaseFormat.NF4, 8: BaseFormat.INT8}


def _truth_or_offload(text: str) -> bool:
    """Return what the key says; ``offload`` and Unsloth's way recompute layers, and keep what they begin with elsewhere."""
    return text.casefold() in ("offload", "offload_disk", "unsloth") or truth(text)


_LENGTH_KEYS = (
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
        Flag(_LENGTH_KEYS, "seq_len", count),
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
        Flag(("load-in-8bit",), "eight_bits", truth, optional=True),
        Flag(("quantization-bit",), "base_bits", count),
        Flag(("use-dora", "peft-use-dora"), "dora", truth, optional=True),
        Flag(("use-liger-kernel",), "liger", truth, optional=True),
        Flag(("config",), "settings_file", str),
        Flag(("accelerate-config",), "accelerate_file", str),
        # LLaMA-Factory's and Axolotl's keys.
        Flag(("stage", "rl"), "method", str),
    ),
    harmless={
        **dict.fromkeys(("output-dir", "dataset-name", "dataset", "data-path", "train-file", "validation-file"), True),
        **dict.fromkeys(("learning-rate", "num-train-epochs", "max-steps", "lr-scheduler-type", "warmup-ratio"), True),
        **dict.fromkeys(("warmup-steps", "weight-decay", "adam-beta1", "adam-beta2", "adam-epsilon", "max-grad-norm"), True),
        **dict.fromkeys(("logging-steps", "logging-dir", "save-steps", "save-strategy", "save-total-limit"), True),
        **dict.fromkeys(("eval-strategy", "evaluation-strategy", "eval-steps", "report-to", "run-name", "seed"), True),
        **dict.fromkeys(("per-device-eval-batch-size", "dataset-config-name", "cache-dir", "template"), True),
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
    switches=frozenset(("packing", "torch-compile", "group-by-length")),
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
    short_names=ShortNames.OF_A_SCRIPT,
)

_OF_A_FILE = replace(HF_TRAINER, short_names=ShortNames.NONE)
"""The same by whole names alone, as files have them."""


# A run by its arguments.

_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw"), Optimizer.ADAMW),
    **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), Optimizer.ADAMW),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), Optimizer.ADAMW_8BIT),
    **dict.fromkeys(("sgd",), Optimizer.SGD_MOMENTUM),
    **dict.fromkeys(("muon",), Optimizer.MUON),
}
DEFAULT_MICROBATCH = 8
"""Sequences of a micro-batch unless told (training_args.py)."""
_AXOLOTL_MICROBATCH = 1
_LENGTHS = {
    Launcher.HF_TRAINER: (1024, "transformers' run_clm.py, at most"),
    Launcher.TRL: (1024, "TRL"),
    Launcher.AXOLOTL: (512, "Axolotl"),
    Launcher.LLAMA_FACTORY: (2048, "LLaMA-Factory"),
}
"""Tokens of a sequence unless told, and who says so (run_clm.py, block_size; sft_config.py, max_length; axolotl/utils/schemas,
sequence_len; hparams/data_args.py, cutoff_len)."""
_DEFAULT_RANK = 8
"""Rank of adapters unless told (LLaMA-Factory, hparams/finetuning_args.py); PEFT's own, too."""
ADAPTED = frozenset((Launcher.TRL, Launcher.AXOLOTL, Launcher.LLAMA_FACTORY))
"""Launchers whose adapters are planned."""
_SETTINGS_ENDS = (".yaml", ".yml", ".json")
_PREFIX = "fsdp_"
_KEY = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class TrainerRun:
    """The run of a script, as far as its arguments say.

    launcher     whose arguments they are
    optimizer    None where none is named
    fsdp         keys of FSDP's configuration, where the arguments hold one
    adapter      ``workload.adapter`` of a request; None where all weights are trained
    not_counted  parts of the run that no figure counts
    """

    arguments: TrainerArguments
    given: tuple[GivenFlag, ...]
    optimizer: Optimizer | None
    notes: tuple[str, ...]
    launcher: Launcher = Launcher.HF_TRAINER
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None
    not_counted: tuple[str, ...] = ()

    @property
    def is_trainer(self) -> bool:
        """True if the script is given arguments that only Hugging Face's Trainer has."""
        own = ("microbatch", "checkpointing", "model", "accumulation")
        return any(getattr(self.arguments, name) is not None for name in own)

    @property
    def deepspeed_file(self) -> str | None:
        """The configuration of DeepSpeed that the script reads; None where it reads none."""
        return self.arguments.deepspeed_config or self.arguments.deepspeed

    @property
    def microbatch(self) -> int | None:
        """Sequences of a micro-batch; None of another script."""
        default = _AXOLOTL_MICROBATCH if self.launcher is Launcher.AXOLOTL else DEFAULT_MICROBATCH
        return self.arguments.microbatch or (default if self.is_trainer else None)

    @property
    def accumulation(self) -> int | None:
        """Micro-batches of a replica; None of another script."""
        return self.arguments.accumulation or (1 if self.is_trainer else None)

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sequence; None of another script."""
        return self.arguments.seq_len or (_LENGTHS[self.launcher][0] if self.is_trainer else None)

    @property
    def recomputes(self) -> bool | None:
        """True if layers are recomputed whole; LLaMA-Factory and TRL do unless told otherwise."""
        if self.arguments.checkpointing is not None or not self.is_trainer:
            return self.arguments.checkpointing
        return self.launcher in (Launcher.LLAMA_FACTORY, Launcher.TRL)


def trainer_run(start: Start, launcher: Launcher = Launcher.HF_TRAINER) -> TrainerRun:
    """Return what the arguments behind a script say, and the file of such arguments that it names.

    Raises InvalidInputError for a value that can't be, or for a file that was not given.
    """
    settings, words = _settings(start, launcher)
    fsdp = settings.get("fsdp_config")
    of_file = {name: value for name, value in settings.items() if name != "fsdp_config" or not isinstance(value, Mapping)}
    named, own = _OF_A_FILE.read(words_of_config(of_file)), HF_TRAINER.read(words)
    read = ParsedCommand({**named.fields, **own.fields}, (*named.given, *own.given), (*named.words, *own.words))
    arguments = TrainerArguments(**read.fields)
    if arguments.fsdp_config is not None:
        fsdp = _named_config(arguments.fsdp_config, start)
    optimizer = None
    if arguments.optimizer is not None:
        optimizer = _OPTIMIZERS.get(arguments.optimizer.casefold())
        if optimizer is None:
            raise InvalidInputError(
                "no cost model covers this optimizer", given=f"--optim {arguments.optimizer}", allowed=", ".join(_OPTIMIZERS)
            )
    has_adapter = arguments.adapter or (arguments.adapter is None and arguments.adapter_rank is not None)
    if has_adapter and launcher is Launcher.HF_TRAINER:
        # Adapters of a script of one's own are PEFT's, as TRL's are.
        launcher = Launcher.TRL
    return TrainerRun(
        arguments,
        read.given,
        optimizer,
        _of_length(arguments, launcher),
        launcher,
        {name if name.startswith(_PREFIX) else _PREFIX + name: value for name, value in (fsdp or {}).items()},
        _adapter(arguments) if has_adapter else None,
        not_counted(method_of(arguments.method, start.program)),
    )


def _of_length(arguments: TrainerArguments, launcher: Launcher) -> tuple[str, ...]:
    if arguments.seq_len is not None or arguments.model is None:
        return ()
    tokens, who = _LENGTHS[launcher]
    return (f"sequences are taken to have {tokens:,} tokens, as those of {who}: no argument says; --seq says others",)


def _settings(start: Start, launcher: Launcher) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The file of arguments that a run reads, and its other words, which hold over it."""
    if start.document is not None:
        return (start.document if launcher in ADAPTED else {}), start.words
    words = list(start.words)
    named = words[0] if words and words[0].endswith(_SETTINGS_ENDS) else None
    if named is not None:
        # Further words of LLaMA-Factory are keys with values.
        words = [f"--{word}" if _KEY.match(word) else word for word in words[1:]]
    else:
        named = HF_TRAINER.read(words).fields.get("settings_file")
    if named is None:
        return {}, words
    text = start.files.required(named, flag="--config") if launcher in ADAPTED else start.files.named(named)
    document = None if text is None else config_of(text)
    if text is not None and document is None:
        raise InvalidInputError("the file of the run's arguments is no YAML", given=named)
    return document or {}, words


def _named_config(named: str, start: Start) -> Mapping[str, Any]:
    """A configuration of FSDP, by its file or as it stands in the argument."""
    text = named if named.lstrip().startswith("{") else start.files.required(named, flag="--fsdp_config")
    found = config_of(text)
    if found is None:
        raise InvalidInputError("the configuration of FSDP is no JSON", given=named)
    return found


def _adapter(arguments: TrainerArguments) -> Mapping[str, Any]:
    known = [target.value for target in AdapterTarget]
    wanted = arguments.adapter_targets or ()
    targets = [name for name in known if name in wanted or wanted in ((), ("all",), ("all-linear",))]
    if not targets:
        raise InvalidInputError(
            "no cost model covers adapters of these modules", given=json.dumps(wanted), allowed=", ".join(known)
        )
    bits = 4 if arguments.four_bits else 8 if arguments.eight_bits else arguments.base_bits or 16
    return {
        "rank": arguments.adapter_rank or _DEFAULT_RANK,
        "targets": targets,
        "base_format": _OF_BITS.get(bits, BaseFormat.WORKING).value,
        **({"kind": AdapterKind.DORA.value} if arguments.dora else {}),
    }
