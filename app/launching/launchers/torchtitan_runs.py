"""A run of torchtitan, by its TOML file or its command, in the words of plans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.launching.launchers.torchtitan import (
    MODELS,
    PLAN_CONFIG,
    PLAN_MODULE,
    TORCHTITAN,
    RegisteredModel,
    TorchtitanFlags,
    exported_model,
)
from meshwright.app.launching.parts.flag import ParsedCommand
from meshwright.app.launching.parts.launch_files import config_of, words_of_config
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import LossKernels, VectorKernels
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.problem.carried_choices import USUAL_STAGE
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap

_CATALOGUE = {"deepseek_v3_671b": "deepseek-v3", "llama4_17bx16e": "llama-4-scout", "llama4_17bx128e": "llama-4-maverick"}
"""Catalogue names of models that torchtitan has and that its exports are not made of."""
_ONE_PART = frozenset({Schedule.ONE_F_ONE_B, Schedule.GPIPE})
"""Schedules with one part of the model a rank."""
_SELECTIVE = "selective recomputation keeps other operators than planned: it is priced as attention and norms"


@dataclass(frozen=True, slots=True)
class _Registered:
    """The values of a registered configuration that a command leaves as they are (torchtitan 0.3.0, config_registry.py)."""

    local_batch: int
    seq_len: int
    checkpointing: str
    tp: int = 1


_REGISTERED = {
    "llama3_8b": _Registered(1, 8192, "selective"),
    "llama3_70b": _Registered(8, 8192, "full", tp=8),
    "llama3_405b": _Registered(2, 8192, "full", tp=8),
    "qwen3_0_6b": _Registered(4, 4096, "selective"),
    "qwen3_1_7b": _Registered(4, 4096, "selective"),
    "qwen3_14b": _Registered(4, 4096, "full"),
    "qwen3_32b": _Registered(2, 4096, "full"),
    PLAN_CONFIG: _Registered(8, 8192, "full", tp=8),
}
_OF_FILES = _Registered(8, 2048, "selective")
"""Values of a TOML file that does not say (job_config.py of 0.2)."""


def read_run(start: Start) -> StatedTraining:
    """Return what a run of torchtitan states; raises InvalidInputError for a value that can't be."""
    read = _read(start)
    flags = TorchtitanFlags(**read.fields)
    name, model = _model(flags, start)
    default = _REGISTERED.get(name, _OF_FILES)
    tp, pp, cp = flags.tp or default.tp, flags.pp or 1, flags.cp or 1
    schedule = _schedule(flags) if pp > 1 else None
    layers = None if model is None else model.layers
    parts, problem = _parts(flags, pp, schedule, layers)
    local = flags.local_batch or default.local_batch
    microbatch = (flags.microbatch or 1) if pp > 1 else local
    recompute, some, notes = _recompute(flags, read.words, default, layers if pp == 1 else None)
    asynchronous = bool(flags.asynchronous) and tp > 1
    replicate = flags.replicate or 1
    spread = (flags.shard is None and replicate == 1) or (flags.shard or 0) > 1 or cp > 1
    return StatedTraining(
        launcher=Launcher.TORCHTITAN,
        given=read.given,
        environment=start.environment,
        notes=(*_model_notes(name, model), *notes),
        problems=(*([problem] if problem else []), *_problems(flags, local, microbatch)),
        model=_CATALOGUE.get(name),
        config=None if model is None else _config(model),
        world=start.world,
        data_parallel=None if flags.shard is None else replicate * flags.shard,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=flags.ep or 1,
        etp=flags.etp,
        chunks=1 if schedule in (None, *_ONE_PART) else max(2, len(parts) // pp),
        parts=parts,
        schedule=None if schedule is None else schedule.value,
        microbatch=microbatch,
        accumulation=None if flags.global_batch is not None else max(1, local // microbatch),
        global_batch=flags.global_batch,
        seq_len=flags.seq_len or default.seq_len,
        zero_stage=_zero_stage(flags, pp) if spread or replicate == 1 else 0,
        optimizer_copies=replicate if spread and replicate > 1 else None,
        sequence_parallel=tp > 1 and flags.sequence_parallel is not False,
        tp_overlap=TpOverlap.CHUNKED if asynchronous else TpOverlap.EXPOSED,
        recompute=recompute,
        stages=USUAL_STAGE.with_layers(some),
        offload=Offload(optimizer=1.0, weights=1.0, gradients=1.0) if flags.cpu_offload else Offload(),
        workload=_workload(flags, compiled=bool(flags.compile) and not asynchronous),
    )


def _read(start: Start) -> ParsedCommand:
    """The options of the file that the command names and those of the command, which hold where both have one."""
    own = TORCHTITAN.read(start.words)
    named = own.fields.get("config_file") or start.environment.get("CONFIG_FILE")
    document = start.document
    if document is None and named is not None:
        document = config_of(start.files.required(named, flag="--job.config_file"))
    if document is None:
        return own
    of_file = TORCHTITAN.read(words_of_config(document))
    return ParsedCommand({**of_file.fields, **own.fields}, (*of_file.given, *own.given), own.words)


def _model(flags: TorchtitanFlags, start: Start) -> tuple[str, RegisteredModel | None]:
    """The name of the configuration, and its sizes where torchtitan's own are known."""
    if flags.model is not None and flags.flavor is not None:
        name = f"{flags.model}_{flags.flavor}".casefold().replace(".", "_").replace("-", "_")
    else:
        name = flags.config or start.environment.get("CONFIG", "")
    if (flags.module or start.environment.get("MODULE")) == PLAN_MODULE and name == PLAN_CONFIG:
        return name, exported_model(start.files.required(f"{PLAN_MODULE}.py", flag="--module"))
    return name, next((model for model in MODELS if model.config == name), None)


def _model_notes(name: str, model: RegisteredModel | None) -> tuple[str, ...]:
    return (
        ()
        if model is None
        else (f"the model is that of torchtitan's {name}" if name != PLAN_CONFIG else f"the model is that of {PLAN_MODULE}.py",)
    )


def _config(model: RegisteredModel) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if model.qk_norm else "llama",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
    }


def _problems(flags: TorchtitanFlags, local: int, microbatch: int) -> tuple[str, ...]:
    found = []
    if local % microbatch:
        found.append(f"a local batch of {local} does not divide by micro-batches of {microbatch}")
    if flags.asynchronous and not flags.compile:
        found.append("asynchronous tensor parallelism needs compile.enable")
    return tuple(found)


def _schedule(flags: TorchtitanFlags) -> Schedule:
    wanted = (flags.schedule or "1F1B").casefold()
    known = {name.casefold(): schedule for schedule, name in names_in(PipelineRuntime.PYTORCH).items()}
    if wanted not in known:
        allowed = ", ".join(names_in(PipelineRuntime.PYTORCH).values())
        raise InvalidInputError("no cost model covers this pipeline schedule", given=flags.schedule, allowed=allowed)
    return known[wanted]


def _parts(
    flags: TorchtitanFlags, pp: int, schedule: Schedule | None, layers: int | None
) -> tuple[tuple[int, ...], str | None]:
    """Decoder layers of each part of the model, and why there are none."""
    if schedule is None:
        return (), None
    if flags.stages:
        return tuple(sum(name.startswith("layers.") for name in part) for part in flags.stages), None
    if layers is None:
        return (), None
    first = 1 if flags.first_stage_less is None else flags.first_stage_less
    last = 1 if flags.last_stage_less is None else flags.last_stage_less
    heavy = layers + first + last
    a_rank = 1 if schedule in _ONE_PART else 2
    number = pp * a_rank
    if flags.layers_per_stage is not None:
        number = math.ceil(heavy / flags.layers_per_stage)
        fits = number == pp if a_rank == 1 else number % pp == 0 and number >= 2 * pp
        if not fits:
            return (), f"pipeline_parallel_layers_per_stage {flags.layers_per_stage}: {number} parts over {pp} ranks"
    each, longer = divmod(heavy, number)
    if each < max(first, last, 1):
        return (), f"{layers} layers over {number} parts leave some empty"
    parts = [each + (place < longer) for place in range(number)]
    parts[0] -= first
    parts[-1] -= last
    return tuple(parts), None


def _zero_stage(flags: TorchtitanFlags, pp: int) -> int:
    """ZeRO-3 where weights are freed after the forward pass: unless told, wherever there is no pipeline."""
    match flags.reshard or "default":
        case "always":
            return 3
        case "never":
            return 2
        case "default":
            return 2 if pp > 1 else 3
    raise InvalidInputError(
        "parallelism.fsdp_reshard_after_forward can't be this", given=flags.reshard, allowed="default, always, never"
    )


def _recompute(
    flags: TorchtitanFlags, words: tuple[str, ...], default: _Registered, layers: int | None
) -> tuple[Recompute, int | None, tuple[str, ...]]:
    """The mode, the layers that are recomputed whole where not all are, and what was taken for granted."""
    chosen = [word.partition(":")[2] for word in words if word.startswith("activation-checkpoint:")]
    mode = (chosen[-1] if chosen else flags.checkpointing or default.checkpointing).casefold()
    if mode == "none":
        return Recompute.NONE, None, ()
    if mode == "full":
        return Recompute.FULL, None, ()
    if mode == "memory-budget" or mode == "memory_budget":
        return Recompute.SELECTIVE, None, ("the compiler chooses what is recomputed: it is priced as attention and norms",)
    if mode != "selective":
        raise InvalidInputError(
            "the mode of activation checkpointing is not known", given=mode, allowed="none, selective, full"
        )
    every = flags.checkpointed or "op"
    if every == "1":
        return Recompute.FULL, None, ()
    if is_digits(every) and not int(every):
        raise InvalidInputError("no layer is every 0th", given=f"selective_ac_option {every}", allowed="op, or a count from 1")
    if not is_digits(every) or layers is None:
        return Recompute.SELECTIVE, None, (_SELECTIVE,)
    note = f"every {every}th layer is recomputed whole: priced as the first {layers // int(every)}"
    return Recompute.FULL, layers // int(every) or None, (note,)


def _workload(flags: TorchtitanFlags, *, compiled: bool) -> dict[str, Any]:
    """Fields of the request's workload."""
    formats = {"bfloat16": DType.BF16, "float32": DType.FP32}
    precision = flags.precision or "bfloat16"
    if precision not in formats:
        raise InvalidInputError("training.mixed_precision_param can't be this", given=precision, allowed=", ".join(formats))
    if (flags.optimizer or "AdamW").casefold() not in ("adam", "adamw"):
        raise InvalidInputError("no cost model covers this optimizer", given=flags.optimizer, allowed="Adam, AdamW")
    work: dict[str, Any] = {"precision": formats[precision].value, "optimizer": Optimizer.ADAMW.value}
    if any("float8" in name for name in flags.converters):
        work["matmul"] = MatmulRecipe.FP8_CURRENT.value
    elif any(name.startswith(("mx", "quantize.linear.mx")) for name in flags.converters):
        work["matmul"] = MatmulRecipe.MXFP8.value
    if compiled and "model" in (flags.components or ("model", "loss")):
        loss = "loss" in (flags.components or ("model", "loss"))
        work["implementation"] = {"kernels": VectorKernels.COMPILED.value}
        if loss:
            work["implementation"]["stated_loss"] = LossKernels.COMPILED.value
    return work
