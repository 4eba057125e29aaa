"""Hugging Face Accelerate: accelerate.yaml, DeepSpeed's configuration where it runs the plan, and ``accelerate launch``; and
runs of scripts over it.

Keys and options are those of 0.20 to 1.15: accelerate/commands/config/config_args.py, commands/launch.py, utils/dataclasses.py,
parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from meshwright.app.launching.launchers.deepspeed import deepspeed_config, guessed, loaders_of, stated_by_keys
from meshwright.app.launching.launchers.hugging_face import (
    ACCELERATE_VERSION,
    Backend,
    accelerate_files,
    accelerate_words,
    adapter_keys,
    assumptions,
    backend_of,
    lost,
    recomputes,
)
from meshwright.app.launching.launchers.trainer import ADAPTED, TrainerRun, trainer_run
from meshwright.app.launching.parts.command import Words, command_text, flag
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, GivenFlag, ParsedCommand, count, truth
from meshwright.app.launching.parts.launch_files import by_usual_name, config_of, words_of_config
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import Loaders, StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload, Optimizer
from meshwright.costmodels.model.adapter import AdapterKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import TrainingRequest


@dataclass(frozen=True, slots=True)
class AccelerateKeys:
    """The keys that say something of a plan or its work; None where neither the configuration nor an option gives one."""

    config_file: str | None = None
    backend: str | None = None
    world: int | None = None
    nodes: int | None = None
    precision: str | None = None
    accumulation: int | None = None
    fsdp_version: int | None = None
    strategy: str | None = None
    reshard: str | None = None
    offloaded: bool | None = None
    loaded_once: bool | None = None
    checkpointing: bool | None = None
    deepspeed_file: str | None = None
    zero_stage: int | None = None
    optimizer_to: str | None = None
    weights_to: str | None = None
    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    cp: int | None = None
    sp: int | None = None


def _stage(text: str) -> int:
    stage = int(text)
    if stage not in range(4):
        raise ValueError(text)
    return stage


def _upper(text: str) -> str:
    return text.upper()


def _keys(section: str, *names: str) -> tuple[str, ...]:
    """Names in the file, below a section, and as options."""
    return (*(f"{section}.{name}" for name in names), *names)


def _of(section: str, name: str, said: str, read: Callable[[str], Any], *, means: Any = True) -> Flag:
    return Flag(_keys(section, name), said, read, means=means, optional=read is truth)


_FSDP, _DEEPSPEED, _PARALLEL = "fsdp-config", "deepspeed-config", "parallelism-config"

ACCELERATE = FlagTable(
    (
        Flag(("config-file",), "config_file", str),
        Flag(("distributed-type",), "backend", _upper),
        Flag(("multi-gpu",), "backend", means="MULTI_GPU"),
        Flag(("use-fsdp",), "backend", means="FSDP"),
        Flag(("use-deepspeed",), "backend", means="DEEPSPEED"),
        Flag(("use-megatron-lm",), "backend", means="MEGATRON_LM"),
        Flag(("num-processes",), "world", count),
        Flag(("num-machines",), "nodes", count),
        Flag(("mixed-precision",), "precision", str),
        _of(_DEEPSPEED, "gradient-accumulation-steps", "accumulation", lambda text: None if text == "auto" else count(text)),
        _of(_FSDP, "fsdp-version", "fsdp_version", count),
        _of(_FSDP, "fsdp-sharding-strategy", "strategy", _upper),
        _of(_FSDP, "fsdp-reshard-after-forward", "reshard", _upper),
        _of(_FSDP, "fsdp-offload-params", "offloaded", truth),
        _of(_FSDP, "fsdp-activation-checkpointing", "checkpointing", truth),
        _of(_FSDP, "fsdp-cpu-ram-efficient-loading", "loaded_once", truth),
        _of(_DEEPSPEED, "deepspeed-config-file", "deepspeed_file", str),
        _of(_DEEPSPEED, "zero-stage", "zero_stage", _stage),
        _of(_DEEPSPEED, "offload-optimizer-device", "optimizer_to", str),
        _of(_DEEPSPEED, "offload-param-device", "weights_to", str),
        _of(_PARALLEL, "parallelism-config-dp-replicate-size", "replicate", count),
        _of(_PARALLEL, "parallelism-config-dp-shard-size", "shard", count),
        _of(_PARALLEL, "parallelism-config-tp-size", "tp", count),
        _of(_PARALLEL, "parallelism-config-cp-size", "cp", count),
        _of(_PARALLEL, "parallelism-config-sp-size", "sp", count),
    ),
    harmless={
        **dict.fromkeys(("compute-environment", "main-training-function", "rdzv-backend", "machine-rank", "debug"), True),
        **dict.fromkeys(("main-process-ip", "main-process-port", "same-network", "gpu-ids", "log-dir", "role"), True),
        **dict.fromkeys(("rdzv-conf", "max-restarts", "monitor-interval", "num-cpu-threads-per-process", "tee"), True),
        **dict.fromkeys(("use-cpu", "tpu-env", "tpu-use-cluster", "tpu-use-sudo", "tpu-name", "tpu-zone", "commands"), True),
        **dict.fromkeys(("downcast-bf16", "enable-cpu-affinity", "command-file", "tpu-vm"), True),
        **dict.fromkeys(_keys(_FSDP, "fsdp-state-dict-type", "fsdp-sync-module-states"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "deepspeed-multinode-launcher", "gradient-clipping", "zero3-init-flag"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "zero3-save-16bit-model", "deepspeed-hostfile", "deepspeed-inclusion-filter"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "offload-optimizer-nvme-path", "offload-param-nvme-path"), True),
        **dict.fromkeys(_keys(_PARALLEL, "parallelism-config-cp-backend", "parallelism-config-sp-backend"), True),
        **dict.fromkeys(("use-parallelism-config", "quiet", "q", "module", "m", "no-python", "cpu"), False),
    },
    not_priced={
        **dict.fromkeys(_keys(_FSDP, "fsdp-auto-wrap-policy", "fsdp-min-num-params"), "how layers are grouped"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-transformer-layer-cls-to-wrap"), "how layers are grouped"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-backward-prefetch", "fsdp-forward-prefetch"), "when weights are gathered"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-backward-prefetch-policy", "fsdp-use-orig-params"), "when weights are gathered"),
        **dict.fromkeys(_keys(_PARALLEL, "parallelism-config-cp-comm-strategy"), "how keys and values travel"),
        "dynamo-backend": "how layers are compiled",
    },
    sections={
        "dynamo-config": "how layers are compiled",
        "fp8-config": "formats of products",
        "megatron-lm-config": "degrees of Megatron-LM",
        "mpirun-config": "",
    },
)


# A plan as its command.

VERSION = ACCELERATE_VERSION
SCRIPT = "train.py"


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration of what shards, and the line that starts a script with it."""
    plan = pipeline_plan(answer)
    return Export(
        launcher=Launcher.ACCELERATE,
        version=VERSION,
        command=command_text(parts=[("accelerate", "launch"), accelerate_words(request, plan.devices), _script(plan, request)]),
        files=accelerate_files(plan, request),
        inexpressible=(*lost(plan, request.workload, Launcher.ACCELERATE), *_checkpoints(plan)),
        assumptions=(*_of_the_script(plan, request), *assumptions(plan, request)),
    )


def _checkpoints(plan: PipelinePlan) -> tuple[str, ...]:
    if recomputes(plan) and backend_of(plan) is not Backend.FSDP:
        return ("full recompute: no key turns it on; call model.gradient_checkpointing_enable() in the script",)
    return ()


def _script(plan: PipelinePlan, request: TrainingRequest) -> Words:
    """The script, and what it has to know of adapters, by the names that TRL's scripts have for it."""
    adapter = request.workload.adapter
    if adapter is None:
        return (SCRIPT,)
    by_model = str(recomputes(plan) and backend_of(plan) is not Backend.FSDP).lower()
    keys = {**adapter_keys(adapter), **({"use_dora": True} if adapter.kind is AdapterKind.DORA else {})}
    words = [
        flag(name) if value is True else flag(name, *value if isinstance(value, list) else (value,))
        for name, value in keys.items()
    ]
    return (SCRIPT, *flag("use_peft"), *chain.from_iterable(words), *flag("gradient_checkpointing", by_model))


def _of_the_script(plan: PipelinePlan, request: TrainingRequest) -> tuple[str, ...]:
    microbatch = plan.microbatch
    assert microbatch is not None
    said = [
        f"{SCRIPT} is your training script: its Accelerator prepares model, optimizer and data, {microbatch.size} sequences a "
        f"batch on each device, and accumulates {microbatch.count} of them a step (gradient_accumulation_steps)"
    ]
    if microbatch.count > 1 and backend_of(plan) is Backend.FSDP:
        said.append(
            f"it makes GradientAccumulationPlugin(num_steps={microbatch.count}, sync_each_batch=True): without it FSDP2 keeps "
            "whole gradients on every device until the last micro-batch"
        )
    if request.workload.adapter is not None:
        said.append(
            "it reads its arguments as TRL's scripts do (HfArgumentParser, ModelConfig), loads the weights by "
            "get_quantization_config and puts adapters beside them by peft.get_peft_model with get_peft_config"
        )
    if backend_of(plan) is Backend.DEEPSPEED:
        said.append("it passes accelerate.utils.DummyOptim with the learning rate, as DeepSpeed makes the optimizer")
    return tuple(said)


# Its command in the words of plans.

_BACKENDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_ZERO = {
    **dict.fromkeys(("1", "FULL_SHARD", "TRUE"), 3),
    **dict.fromkeys(("2", "SHARD_GRAD_OP", "FALSE"), 2),
    **dict.fromkeys(("3", "NO_SHARD", "NO_RESHARD"), 0),
    **dict.fromkeys(("4", "HYBRID_SHARD"), 3),
    **dict.fromkeys(("5", "HYBRID_SHARD_ZERO2"), 2),
}
"""ZeRO stages of FSDP's strategies (utils/constants.py, FSDP_SHARDING_STRATEGY) and of what FSDP2 reshards."""
_OF_A_NODE = ("4", "5", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_FORMATS = {"bf16": DType.BF16, "fp16": DType.FP16, **dict.fromkeys(("no", "none", "false"), DType.FP32)}
_DEFAULT_ZERO = 2
"""Stage of DeepSpeed unless told (utils/dataclasses.py, DeepSpeedPlugin)."""
_VALUED_OPTIONS = frozenset(name for name, has_value in ACCELERATE.harmless.items() if has_value)


_MODULES: Mapping[str, Launcher] = {
    **dict.fromkeys(("axolotl.cli.train", "axolotl"), Launcher.AXOLOTL),
    **dict.fromkeys(("llamafactory.launcher", "llamafactory-cli"), Launcher.LLAMA_FACTORY),
    **dict.fromkeys(("trl.scripts.sft", "trl.scripts.dpo", "trl", "sft.py", "dpo.py", "kto.py"), Launcher.TRL),
}
"""Launchers whose arguments a script or module reads."""
_PROFILES: Mapping[str, Mapping[str, Any]] = {
    "multi_gpu": {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
    "single_gpu": {"distributed_type": "NO", "mixed_precision": "bf16"},
    **{
        f"zero{stage}": {
            "distributed_type": "DEEPSPEED",
            "mixed_precision": "bf16",
            "deepspeed_config": {"zero_stage": stage},
        }
        for stage in (1, 2, 3)
    },
    "fsdp1": {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}},
    "fsdp2": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True},
    },
}
"""Configurations that TRL has by name (trl/accelerate_configs)."""


def read_run(start: Start) -> StatedTraining:
    """Return what a run of Accelerate states; raises InvalidInputError for a value that can't be."""
    options, program, script = _split(start.words)
    read = _read(options, start)
    launcher = _MODULES.get(program) or _MODULES.get(program.rpartition("/")[2], Launcher.HF_TRAINER)
    first = next(iter(script), "")
    if program.endswith("train.py") and first.endswith((".yaml", ".yml")):
        launcher = Launcher.LLAMA_FACTORY
    trainer = trainer_run(replace(start, words=script, document=None, program=program), launcher)
    return _stated(read, trainer, start, trainer.launcher if trainer.launcher in ADAPTED else Launcher.ACCELERATE)


def read_by_trainer(start: Start, launcher: Launcher) -> StatedTraining:
    """Return what a run states that Accelerate does not start, by the Trainer's arguments: its configuration is TRL's to
    name."""
    trainer = trainer_run(start, launcher)
    read = ParsedCommand({}, (), ())
    named = trainer.arguments.accelerate_file
    if named is not None:
        document = _PROFILES.get(named) or _config(start, named)
        if document is None:
            raise InvalidInputError("the configuration of Accelerate is no YAML", given=named)
        read = ACCELERATE.read(words_of_config(document))
    if trainer.launcher is Launcher.TRL:
        handed_on = ACCELERATE.read(start.words).fields
        told = {name: handed_on[name] for name in ("world", "nodes") if name in handed_on}
        read = ParsedCommand({**read.fields, **told}, read.given, ())
    return _stated(read, trainer, start, trainer.launcher)


def _stated(read: ParsedCommand, trainer: TrainerRun, start: Start, launcher: Launcher) -> StatedTraining:
    """The run by the keys of Accelerate and the arguments of a trainer, which hold where both say something."""
    keys = AccelerateKeys(**{**read.fields, **_of_trainer(trainer)})
    backend = keys.backend or ("DEEPSPEED" if trainer.deepspeed_file is not None else None)
    backend = backend or ("FSDP" if trainer.arguments.fsdp or trainer.fsdp else "MULTI_GPU")
    if backend == "MULTI_GPU" and trainer.deepspeed_file is not None:
        backend = "DEEPSPEED"
    if backend not in _BACKENDS:
        raise InvalidInputError(
            "runs of Accelerate are read that train on devices by themselves, by FSDP or by DeepSpeed",
            given=f"distributed_type {backend}",
            allowed=", ".join(_BACKENDS),
            remedy="give the command of Megatron-LM's own script" if backend == "MEGATRON_LM" else None,
        )
    world = keys.world or start.world or (1 if backend == "NO" else None)
    start = replace(start, world=world)
    found = (
        _by_deepspeed(keys, trainer, start, read.given)
        if backend == "DEEPSPEED"
        else _by_pytorch(keys, trainer, start, read.given, is_sharded=backend == "FSDP")
    )
    found = replace(found, loaders=_loaders(found, read, trainer, keys, is_sharded=backend == "FSDP"))
    found = replace(found, notes=(*guessed(start, read.fields.get("config_file"), trainer.deepspeed_file), *found.notes))
    work = dict(found.workload)
    if trainer.adapter is not None:
        work["adapter"] = trainer.adapter
    if trainer.launcher is not Launcher.HF_TRAINER:
        work = work | ({"precision": DType.BF16.value} if _is_half(trainer) else {})
    return replace(found, launcher=launcher, workload=work)


def _loaders(
    found: StatedTraining, read: ParsedCommand, trainer: TrainerRun, keys: AccelerateKeys, *, is_sharded: bool
) -> Loaders:
    """FSDP's ranks read once a node where they are told to: Accelerate's own configuration does unless told otherwise
    (commands/launch.py), the Trainer's arguments only where they say so (training_args.py)."""
    if not is_sharded:
        return found.loaders if found.loaders is not Loaders.NONE else loaders_of(trainer, Loaders.EACH)
    by_accelerate = bool(read.fields)
    once = by_accelerate if keys.loaded_once is None else keys.loaded_once
    return loaders_of(trainer, Loaders.FIRST if once else Loaders.EACH)


def _is_half(trainer: TrainerRun) -> bool:
    """True where nothing says the format: TRL, Axolotl and LLaMA-Factory then work in bf16 where the device has it."""
    return trainer.arguments.bf16 is None and trainer.arguments.fp16 is None


def _of_trainer(trainer: TrainerRun) -> dict[str, Any]:
    """The keys of Accelerate that the arguments of a trainer say."""
    found = dict(ACCELERATE.read(words_of_config({"fsdp_config": _with_version(trainer.fsdp)})).fields)
    arguments = trainer.arguments
    for name in ("fsdp_version", "replicate", "shard", "tp", "cp"):
        if getattr(arguments, name) is not None:
            found[name] = getattr(arguments, name)
    if "offload" in (arguments.fsdp or "").split():
        found["offloaded"] = True
    if found and ("fsdp_version" not in found) and {"replicate", "shard", "tp", "cp"} & found.keys():
        # Their meshes are FSDP2's.
        found["fsdp_version"] = 2
    return found


def _with_version(fsdp: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the Trainer's own configuration under the names that Accelerate has for them."""
    return {_RENAMED.get(name, name): value for name, value in fsdp.items()}


_RENAMED = {"fsdp_xla": "fsdp_use_orig_params", "fsdp_min_params": "fsdp_min_num_params"}


def _split(words: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """The options of the launch, the script or module that it starts, and the words behind that."""
    place = 0
    while place < len(words):
        word = words[place]
        name = word.lstrip("-").replace("_", "-")
        if not word.startswith("-"):
            return words[:place], word, words[place + 1 :]
        known = ACCELERATE.by_name.get(name)
        takes = (known is not None and known.read is not None) or name in ACCELERATE.not_priced or name in _VALUED_OPTIONS
        # Options that the table has not are taken to have a value, but before another and before a script.
        following = words[place + 1] if place + 1 < len(words) else "-"
        unknown = known is None and name not in ACCELERATE.harmless and not following.endswith(".py")
        place += 2 if "=" not in word and (takes or unknown) and not following.startswith("--") else 1
    return words, "", ()


def _read(options: Sequence[str], start: Start) -> ParsedCommand:
    """The keys of the file that the launch names and its options, which hold where both say something."""
    own = ACCELERATE.read(options)
    document = start.document
    named = own.fields.get("config_file")
    if document is None and named is not None:
        document = _config(start, named)
        if document is None:
            raise InvalidInputError("the configuration of Accelerate is no YAML", given=named)
    if document is None:
        return own
    of_file = ACCELERATE.read(words_of_config(document))
    return ParsedCommand({**of_file.fields, **own.fields}, (*of_file.given, *own.given), own.words)


def _config(start: Start, named: str) -> Mapping[str, Any] | None:
    """The configuration of a name; where it was not given, and its name is one that recipes share, what that name says."""
    by_name = by_usual_name(named)
    if start.files.named(named) is None and by_name is not None:
        return {
            "distributed_type": "DEEPSPEED",
            "mixed_precision": "bf16",
            "deepspeed_config": {"zero_stage": by_name.stage, **({} if by_name.offloaded is None else by_name.offloaded)},
        }
    return config_of(start.files.required(named, flag="--config_file"))


def _by_deepspeed(keys: AccelerateKeys, trainer: TrainerRun, start: Start, given: tuple[GivenFlag, ...]) -> StatedTraining:
    """The run by DeepSpeed's own file where one is named, else by Accelerate's keys for it."""
    named = keys.deepspeed_file or trainer.deepspeed_file
    if named is None:
        found = stated_by_keys(_deepspeed_document(keys), trainer, start)
        return replace(found, launcher=Launcher.ACCELERATE, given=(*given, *trainer.given))
    document = deepspeed_config(named, start)
    found = stated_by_keys(document, trainer, start)
    return replace(found, launcher=Launcher.ACCELERATE, given=(*given, *found.given))


def _deepspeed_document(keys: AccelerateKeys) -> Mapping[str, Any]:
    """The configuration that Accelerate makes of its keys."""
    zero: dict[str, Any] = {"stage": _DEFAULT_ZERO if keys.zero_stage is None else keys.zero_stage}
    for name, device in (("offload_optimizer", keys.optimizer_to), ("offload_param", keys.weights_to)):
        if device is not None and device.casefold() != "none":
            zero[name] = {"device": device}
    precision = _precision(keys, None)
    return {
        "zero_optimization": zero,
        **({} if keys.accumulation is None else {"gradient_accumulation_steps": keys.accumulation}),
        **({"bf16": {"enabled": True}} if precision is DType.BF16 else {}),
        **({"fp16": {"enabled": True}} if precision is DType.FP16 else {}),
    }


def _by_pytorch(
    keys: AccelerateKeys, trainer: TrainerRun, start: Start, given: tuple[GivenFlag, ...], *, is_sharded: bool
) -> StatedTraining:
    zero = _zero_stage(keys, trainer) if is_sharded else 0
    tp, cp = keys.tp or 1, (keys.cp or 1) * (keys.sp or 1)
    microbatch = trainer.microbatch
    return StatedTraining(
        launcher=Launcher.ACCELERATE,
        given=(*given, *trainer.given),
        environment=start.environment,
        notes=(*_notes(keys, trainer, is_sharded=is_sharded), *trainer.notes),
        not_counted=trainer.not_counted,
        problems=_problems(keys),
        model=trainer.arguments.model,
        world=start.world,
        data_parallel=None if keys.shard is None else (keys.replicate or 1) * keys.shard,
        tp=tp,
        cp=cp,
        ulysses=keys.sp or 1,
        microbatch=microbatch,
        accumulation=keys.accumulation or trainer.accumulation,
        seq_len=trainer.seq_len,
        zero_stage=zero,
        shard_ranks=_shard_ranks(keys, start.world) if zero > 0 else None,
        recompute=Recompute.FULL if keys.checkpointing or trainer.recomputes else Recompute.NONE,
        offload=Offload(optimizer=1.0, weights=1.0, gradients=1.0) if is_sharded and keys.offloaded else NOTHING_OFFLOADED,
        workload={
            "precision": _precision(keys, trainer).value,
            "optimizer": (trainer.optimizer or Optimizer.ADAMW).value,
        },
    )


def _zero_stage(keys: AccelerateKeys, trainer: TrainerRun) -> int:
    """FSDP's stage by what it reshards (2) or its strategy (1), or the first word of the Trainer's argument."""
    told = (trainer.arguments.fsdp or "").replace(",", " ").split()
    said = keys.reshard if (keys.fsdp_version or 1) > 1 or keys.strategy is None else keys.strategy
    if said is None and told:
        said = told[0].upper()
    if said is not None and said not in _ZERO:
        raise InvalidInputError("FSDP has no such strategy", given=said, allowed=", ".join(_ZERO))
    return 3 if said is None else _ZERO[said]


def _shard_ranks(keys: AccelerateKeys, world: int | None) -> int | None:
    """Ranks of a group that shards: as the mesh says, a node's of a hybrid strategy, else all."""
    if keys.replicate is not None and keys.replicate > 1 and keys.shard is not None:
        return keys.shard * (keys.cp or 1)
    if keys.strategy in _OF_A_NODE and (keys.fsdp_version or 1) == 1 and world is not None and (keys.nodes or 1) > 1:
        return world // (keys.nodes or 1)
    return None


def _precision(keys: AccelerateKeys, trainer: TrainerRun | None) -> DType:
    """The working format: the Trainer's arguments hold where they say one."""
    if trainer is not None and (trainer.arguments.bf16 or trainer.arguments.fp16):
        return DType.BF16 if trainer.arguments.bf16 else DType.FP16
    named = (keys.precision or "no").casefold()
    if named not in _FORMATS:
        raise InvalidInputError("no cost model covers this mixed precision here", given=named, allowed="bf16, fp16, no")
    return _FORMATS[named]


def _problems(keys: AccelerateKeys) -> tuple[str, ...]:
    """Rules of ParallelismConfig and of the launch that hold whatever the model is."""
    found = []
    meshed = any(degree is not None and degree > 1 for degree in (keys.replicate, keys.shard, keys.tp, keys.cp, keys.sp))
    if meshed and (keys.fsdp_version or 1) == 1:
        found.append("parallelism_config needs FSDP with fsdp_version 2")
    if (keys.cp or 1) > 1 and (keys.sp or 1) > 1:
        found.append("cp_size and sp_size are both above 1")
    if (keys.replicate or 1) > 1 and ((keys.tp or 1) > 1 or (keys.cp or 1) > 1) and (keys.shard or 1) == 1:
        found.append("dp_replicate_size beside tp or cp needs a dp_shard_size above 1")
    return tuple(found)


def _notes(keys: AccelerateKeys, trainer: TrainerRun, *, is_sharded: bool) -> tuple[str, ...]:
    said = []
    if trainer.microbatch is None:
        said.append("micro-batches are what the batch leaves of each replica: the script decides, and nothing here says")
    if trainer.recomputes is None and not keys.checkpointing:
        said.append("no layers are taken to be recomputed: the script decides, and nothing here says")
    if is_sharded:
        said.append("gradients are taken to be sharded in every micro-batch (sync_each_batch)")
    return tuple(said)
