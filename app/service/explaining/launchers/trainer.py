"""The arguments of a script over Hugging Face's Trainer, which DeepSpeed, Accelerate and torchrun start alike."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import GivenFlag, Standing
from meshwright.app.launching.flags.hf_trainer import HF_TRAINER, TrainerArguments
from meshwright.app.service.explaining.start import Start
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Optimizer

_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw"), Optimizer.ADAMW),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), Optimizer.ADAMW_8BIT),
    **dict.fromkeys(("sgd",), Optimizer.SGD_MOMENTUM),
}
DEFAULT_MICROBATCH = 8
"""Sequences of a micro-batch unless told (training_args.py)."""


@dataclass(frozen=True, slots=True)
class TrainerRun:
    """The run of a script, as far as its arguments say.

    optimizer    None where none is named
    recomputes   None where nothing says
    """

    arguments: TrainerArguments
    given: tuple[GivenFlag, ...]
    optimizer: Optimizer | None
    notes: tuple[str, ...]

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
        return self.arguments.microbatch or (DEFAULT_MICROBATCH if self.is_trainer else None)

    @property
    def accumulation(self) -> int | None:
        """Micro-batches of a replica; None of another script."""
        return self.arguments.accumulation or (1 if self.is_trainer else None)

    @property
    def recomputes(self) -> bool | None:
        """True if layers are recomputed whole."""
        return self.arguments.checkpointing if self.arguments.checkpointing is not None or not self.is_trainer else False


def trainer_run(start: Start) -> TrainerRun:
    """Return what the arguments behind a script say; raises InvalidInputError for a value that can't be."""
    read = HF_TRAINER.read(start.words)
    arguments = TrainerArguments(**read.fields)
    optimizer = None
    if arguments.optimizer is not None:
        optimizer = _OPTIMIZERS.get(arguments.optimizer)
        if optimizer is None:
            raise InvalidInputError(
                "no cost model covers this optimizer", given=f"--optim {arguments.optimizer}", allowed=", ".join(_OPTIMIZERS)
            )
    notes = []
    adapters = arguments.adapter or any(
        flag.name.lstrip("-").replace("_", "-") in _ADAPTERS and flag.standing is Standing.NOT_PRICED for flag in read.given
    )
    if adapters:
        notes.append("adapters are not read of commands: figures are those of training all weights")
    return TrainerRun(arguments, read.given, optimizer, tuple(notes))


_ADAPTERS = ("lora-r", "lora-rank", "lora-alpha", "lora-target", "lora-target-modules")
