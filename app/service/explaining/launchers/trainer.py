"""The arguments of a script over Hugging Face's Trainer, which DeepSpeed, Accelerate and torchrun start alike, and the files of
TRL, Axolotl and LLaMA-Factory, which hold such arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.app.launching.flags.flag import GivenFlag
from meshwright.app.launching.flags.hf_trainer import HF_TRAINER, TrainerArguments
from meshwright.app.service.explaining.launch_files import config_of, words_of_config
from meshwright.app.service.explaining.start import Start
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.adapter import AdapterTarget, BaseFormat
from meshwright.solver.problem.choices import Launcher

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
    """

    arguments: TrainerArguments
    given: tuple[GivenFlag, ...]
    optimizer: Optimizer | None
    notes: tuple[str, ...]
    launcher: Launcher = Launcher.HF_TRAINER
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None

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
    read = HF_TRAINER.read([*words_of_config(of_file), *words])
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
    return {
        "rank": arguments.adapter_rank or _DEFAULT_RANK,
        "targets": targets,
        "base_format": (BaseFormat.NF4 if arguments.four_bits else BaseFormat.WORKING).value,
    }
