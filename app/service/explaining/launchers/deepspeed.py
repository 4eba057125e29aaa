"""A run of DeepSpeed, by its configuration, its launcher and the arguments of Hugging Face's Trainer, in the words of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.app.launching.flags.deepspeed import AUTO, DEEPSPEED, DeepSpeedKeys
from meshwright.app.service.explaining.launch_files import by_usual_name, config_of, words_of_config
from meshwright.app.service.explaining.launchers.trainer import TrainerRun, trainer_run
from meshwright.app.service.explaining.start import Start
from meshwright.app.service.explaining.stated import Loaders, StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Offload, Optimizer, Tier
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Launcher, Recompute

_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "torch_adam"), Optimizer.ADAMW),
    **dict.fromkeys(("sgd",), Optimizer.SGD_MOMENTUM),
    **dict.fromkeys(("muon",), Optimizer.MUON),
}
_FORMATS = {
    **dict.fromkeys(("fp32", "float32"), DType.FP32),
    **dict.fromkeys(("bf16", "bfloat16"), DType.BF16),
    **dict.fromkeys(("fp16", "float16"), DType.FP16),
}
_TIERS = {"cpu": Tier.HOST, "nvme": Tier.NVME}


def read_deepspeed(start: Start) -> StatedTraining:
    """Return what a run of DeepSpeed states; raises InvalidInputError for a value that can't be."""
    trainer = trainer_run(start)
    document = start.document
    if document is None:
        if trainer.deepspeed_file is None:
            raise InvalidInputError(
                "the command names no configuration of DeepSpeed",
                allowed="--deepspeed_config ds_config.json, or --deepspeed ds_config.json of Hugging Face's Trainer",
            )
        document = deepspeed_config(trainer.deepspeed_file, start)
        found = stated_by_keys(document, trainer, start)
        return replace(found, notes=(*guessed(start, trainer.deepspeed_file), *found.notes))
    return stated_by_keys(document, trainer, start)


def deepspeed_config(named: str, start: Start) -> Mapping[str, Any]:
    """Return the configuration of a name; where it was not given, what a name that recipes share says.

    Raises InvalidInputError for another that was not given, or for one that can't be read.
    """
    by_name = by_usual_name(named)
    if start.files.named(named) is None and by_name is not None:
        on_host = {name.removesuffix("_device"): {"device": device} for name, device in (by_name.offloaded or {}).items()}
        return {"zero_optimization": {"stage": by_name.stage, **on_host}, "bf16": {"enabled": AUTO}}
    document = config_of(start.files.required(named, flag="--deepspeed"))
    if document is None:
        raise InvalidInputError("the configuration of DeepSpeed is no JSON", given=named)
    return document


def guessed(start: Start, *names: str | None) -> tuple[str, ...]:
    """Return a note of each file that was not given, and is taken to be what its name says."""
    return tuple(
        f"{name} was not given: it is taken to be what its name says; give it by --with"
        for name in names
        if name is not None and start.files.named(name) is None and by_usual_name(name) is not None
    )


def stated_by_keys(document: Mapping[str, Any], trainer: TrainerRun, start: Start) -> StatedTraining:
    """Return what a configuration states of a run, with the arguments of a trainer."""
    read = DEEPSPEED.read(words_of_config(document))
    keys = DeepSpeedKeys(**read.fields)
    tp = max(1, keys.tp or 1)
    pp = keys.stages or 1
    microbatch = keys.microbatch or trainer.microbatch
    accumulation = keys.accumulation or trainer.accumulation
    if keys.microbatch is None and keys.train_batch is None and microbatch is None and "microbatch" in read.fields:
        raise InvalidInputError(
            "the configuration leaves its micro-batch to the trainer, and no arguments of one were given",
            given="train_micro_batch_size_per_gpu: auto",
            remedy="give the script's command with --per_device_train_batch_size",
        )
    return StatedTraining(
        launcher=Launcher.DEEPSPEED if trainer.adapter is None else trainer.launcher,
        given=(*read.given, *trainer.given),
        environment=start.environment,
        notes=(*_notes(keys, trainer), *trainer.notes),
        problems=_problems(keys, microbatch, accumulation, start.world, tp * pp),
        model=trainer.arguments.model,
        world=start.world,
        tp=tp,
        pp=pp,
        cp=keys.sequence_ranks or 1,
        ulysses=keys.sequence_ranks or 1,
        schedule=None if pp == 1 else Schedule.ONE_F_ONE_B.value,
        microbatch=microbatch,
        # Of batch, micro-batch and accumulation any two say the third; without a batch it is one.
        accumulation=accumulation or (1 if keys.train_batch is None or microbatch is None else None),
        global_batch=keys.train_batch,
        seq_len=trainer.seq_len,
        zero_stage=keys.zero_stage or 0,
        shard_ranks=keys.shard_ranks if keys.shard_ranks is not None and keys.shard_ranks > 0 else None,
        recompute=Recompute.FULL if trainer.recomputes or (keys.recomputed or 0) > 0 else Recompute.NONE,
        offload=_offload(keys),
        workload=_workload(keys, trainer),
        loaders=loaders_of(trainer, Loaders.FIRST if keys.zero_stage == 3 else Loaders.EACH),
    )


def loaders_of(trainer: TrainerRun, of_checkpoint: Loaders) -> Loaders:
    """Return the ranks that read the checkpoint whose weights a trainer begins with; none where it names none, or reads it in
    four bits, which go to the device one by one.

    Under ZeRO-3 the first rank reads, as under FSDP where that is asked for: the others hold no weights until they have their
    share (transformers, modeling_utils.py, load_state_dict).
    """
    has_checkpoint = trainer.arguments.model is not None and not trainer.arguments.four_bits
    return of_checkpoint if has_checkpoint else Loaders.NONE


def _offload(keys: DeepSpeedKeys) -> Offload:
    to = keys.optimizer_to or ("cpu" if keys.all_offloaded else "none")
    weights = keys.weights_to or "none"
    for given in (to, weights):
        if given not in (*_TIERS, "none"):
            raise InvalidInputError("state can't be offloaded there", given=given, allowed="cpu, nvme, none")
    stage = keys.zero_stage or 0
    moved = 0.0 if to == "none" else (keys.optimizer_share or 1.0) if stage == 3 else 1.0
    # From ZeRO-2 up gradients go where the states go.
    return Offload(
        optimizer=moved,
        weights=0.0 if weights == "none" or stage < 3 else 1.0,
        gradients=moved if stage >= 2 else 0.0,
        optimizer_to=_TIERS.get(to, Tier.HOST),
        weights_to=_TIERS.get(weights, Tier.HOST),
    )


def _problems(
    keys: DeepSpeedKeys, microbatch: int | None, accumulation: int | None, world: int | None, ranks: int
) -> tuple[str, ...]:
    """Rules of DeepSpeedConfig that hold whatever the model is."""
    found = []
    stage = keys.zero_stage or 0
    if keys.bf16 and keys.fp16:
        found.append("bf16 and fp16 are both enabled")
    if (keys.optimizer_to or "none") != "none" and stage == 0:
        found.append("offload_optimizer needs zero_optimization.stage 1 or higher")
    if (keys.weights_to or "none") != "none" and stage < 3:
        found.append("offload_param needs zero_optimization.stage 3")
    sizes = (keys.train_batch, microbatch, accumulation)
    if None not in sizes and world is not None and world % ranks == 0:
        batch, of_one, times = (int(size or 0) for size in sizes)
        if batch != of_one * times * (world // ranks):
            found.append(
                f"train_batch_size {batch} is not {of_one} sequences x {times} micro-batches x {world // ranks} replicas"
            )
    return tuple(found)


def _notes(keys: DeepSpeedKeys, trainer: TrainerRun) -> tuple[str, ...]:
    if trainer.recomputes is None and keys.recomputed is None:
        return ("no layers are taken to be recomputed: the script decides, and nothing here says",)
    return ()


def _workload(keys: DeepSpeedKeys, trainer: TrainerRun) -> dict[str, Any]:
    """Fields of the request's workload."""
    named = (keys.optimizer or "adamw").casefold()
    optimizer = _OPTIMIZERS.get(named, trainer.optimizer if keys.optimizer is None else None)
    if optimizer is None:
        raise InvalidInputError("no cost model covers this optimizer", given=keys.optimizer, allowed="AdamW, SGD, Muon")
    bf16 = trainer.arguments.bf16 if keys.bf16 is None else keys.bf16
    fp16 = trainer.arguments.fp16 if keys.fp16 is None else keys.fp16
    precision = DType.BF16 if bf16 else DType.FP16 if fp16 else DType.FP32
    work: dict[str, Any] = {"precision": precision.value, "optimizer": (trainer.optimizer or optimizer).value}
    if keys.gradient_dtype is not None:
        if keys.gradient_dtype not in _FORMATS:
            raise InvalidInputError("gradients can't have this format", given=keys.gradient_dtype, allowed=", ".join(_FORMATS))
        work["gradient_dtype"] = _FORMATS[keys.gradient_dtype].value
    return work if trainer.adapter is None else work | {"adapter": trainer.adapter}
