"""The request that a launch command is measured against: its model, the devices and the load, which options say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.catalog import model, model_names
from meshwright.app.catalog.huggingface_ids import catalogue_name_in_words
from meshwright.app.explaining.stated import Stated, StatedServer, StatedTraining
from meshwright.app.validation.serving.checkpoints import checkpoint, own_precision
from meshwright.app.ways_in.cluster_words import cluster_of_words
from meshwright.app.ways_in.model_words import model_of_words
from meshwright.app.ways_in.one_line import OneLine, Task, request_of_line
from meshwright.app.ways_in.own_hardware import own_nodes
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import DType
from meshwright.solver.problem.launchers.table import SERVERS

_NARROW = {"nvfp4": DType.FP4, "mxfp4": DType.FP4, "fp4": DType.FP4, "fp8": DType.FP8}
"""Number formats by the words that names of quantised checkpoints end with."""
_ENGINE_FORMATS = {"fp8": DType.FP8, "modelopt_fp4": DType.FP4, "modelopt": DType.FP8, "mxfp4": DType.FP4, "nvfp4": DType.FP4}
"""Number formats by engines' names of the ways in which they quantise."""


@dataclass(frozen=True, slots=True)
class Question:
    """The document of a request, and what was taken for granted in making it.

    open_document   the same for a better command, which may run otherwise what flags alone decide; None where nothing is
    """

    document: dict[str, Any]
    notes: tuple[str, ...]
    open_document: dict[str, Any] | None = None


ModelOf = Callable[[str], Mapping[str, Any]]
"""The ``model`` of a request by the words that name it."""


def question_of(stated: Stated, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a command; raises InvalidInputError for what neither the command nor options say."""
    if isinstance(stated, StatedServer):
        return served_question(stated, line, model_of)
    return trained_question(stated, line, model_of)


def trained_question(stated: StatedTraining, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a training command. Options take the place of what the command says.

    Raises InvalidInputError for what neither says.
    """
    _require_own_launcher(stated, line)
    line = _with_cluster(stated, line)
    batch = line.batch or _batch(stated, line)
    seq = line.seq or (None if stated.seq_len is None else str(stated.seq_len))
    line = replace(line, task=Task.TRAIN, launcher=stated.launcher.value, batch=batch, seq=seq)
    notes: tuple[str, ...] = ()
    if stated.config is not None and not line.model:
        source = {"config": dict(stated.config), "name": stated.config["model_type"]}
        document = request_of_line(line, source=source)
    else:
        named, notes = named_model(line.model or stated.model)
        document = request_of_line(replace(line, model=named), source=model_of(named))
    work = document["workload"]
    given = {} if line.precision is None else {"precision": line.precision}
    document["workload"] = work | dict(stated.workload) | given
    return Question(document, (*stated.notes, *notes), _opened(document))


def _opened(document: dict[str, Any]) -> dict[str, Any] | None:
    """The request with gradients that travel as the launcher has them: a better command may have the flags for it."""
    stated = dict(document["workload"].get("implementation") or {})
    if stated.pop("reduction", None) is None:
        return None
    work = {name: value for name, value in document["workload"].items() if name != "implementation"}
    return document | {"workload": work | ({"implementation": stated} if stated else {})}


def _batch(stated: StatedTraining, line: OneLine) -> str | None:
    """Sequences of a step: as the command says, or a micro-batch of each replica as often as it says."""
    if stated.global_batch is not None:
        return str(stated.global_batch)
    if stated.microbatch is None or stated.accumulation is None or line.gpus is None:
        return None
    world = stated.world or cluster_of_words(line.gpus, own_nodes()).n_devices
    replicas = max(1, world // (stated.tp * stated.pp * stated.cp))
    return str(stated.microbatch * stated.accumulation * replicas)


def _with_cluster(stated: Stated, line: OneLine) -> OneLine:
    """The line with the devices that the script asks Slurm for, where it names none."""
    if line.gpus is not None or stated.job is None:
        return line
    if stated.job.cluster is not None:
        return replace(line, gpus=stated.job.cluster)
    nodes, devices = stated.job.nodes, stated.job.devices
    raise InvalidInputError(
        "the script does not say which devices its job runs on",
        given=f"{nodes} nodes" if devices is None else f"{nodes} nodes of {devices} devices",
        allowed="--gpus, or their kind in the script: #SBATCH --gres=gpu:h100:8",
        remedy=f"add --gpus {nodes}x{devices or 8}xH100",
    )


def served_question(stated: StatedServer, line: OneLine, model_of: ModelOf = model_of_words) -> Question:
    """Return the request of a server's command; raises InvalidInputError for what neither the command nor options say.

    ``line`` has the options; its model, where it has one, takes the place of the command's.
    """
    _require_own_launcher(stated, line)
    line = _with_cluster(stated, line)
    named, notes = named_model(line.model or stated.model)
    line = replace(line, model=named, task=Task.SERVE, launcher=stated.launcher.value)
    document = request_of_line(line, source=model_of(named))
    engine = SERVERS[stated.launcher].engine
    document["search"] = {"launcher": stated.launcher.value, "engine": engine.value}
    work = document["workload"]
    if line.precision is None:
        found = _precision(stated, named)
        if found is not None:
            work["precision"] = found.value
            notes = (*notes, f"weights in {found.value}, {_basis(stated)}")
    _add_checkpoint(work, named)
    if stated.flags.kv_dtype is not None:
        work["kv_dtype"] = stated.flags.kv_dtype.value
    if stated.flags.redundant_experts:
        work["experts"] = {"redundant_experts": stated.flags.redundant_experts}
    if stated.flags.draft_tokens is not None:
        notes = (*notes, "drafted tokens are not priced: no option says how many are kept")
    return Question(document, (*stated.notes, *notes))


def named_model(text: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the model that a command names, as a request would, and what was taken for granted."""
    if not text or "$" in text:
        raise InvalidInputError(
            "the command does not say its model" if not text else "the command's model is a variable of a shell",
            given=text,
            allowed="a catalogue name, an id of the Hugging Face Hub, a checkpoint's folder, a config.json",
            remedy="name it: --model Qwen/Qwen3-8B",
        )
    known = catalogue_name_in_words(text, model_names())
    if known is None or text.casefold() == known:
        return text, ()
    return known, (f"{text} has the shape of the catalogue's {known}",)


def _require_own_launcher(stated: Stated, line: OneLine) -> None:
    if line.launcher not in (None, stated.launcher.value):
        raise InvalidInputError("the command starts another launcher", given=line.launcher, allowed=stated.launcher.value)


def _precision(stated: StatedServer, named: str) -> DType | None:
    """The format of a checkpoint by the command's flags, by its name, or by what its maker publishes."""
    flags = stated.flags
    if flags.quantization is not None and flags.quantization.casefold() in _ENGINE_FORMATS:
        return _ENGINE_FORMATS[flags.quantization.casefold()]
    for word, dtype in _NARROW.items():
        if stated.model and re.search(rf"(?:^|[-_]){word}(?:$|[-_])", stated.model.casefold()):
            return dtype
    return own_precision(named) or flags.dtype


def _basis(stated: StatedServer) -> str:
    return "by the command's flags or the checkpoint's name, or as its maker publishes it"


def _add_checkpoint(work: dict[str, Any], named: str) -> None:
    """Say what published checkpoints store narrow."""
    if work.get("precision") in (DType.FP8.value, DType.FP4.value) and named in model_names():
        _, weights, quantised = checkpoint(named, model(named), DType(work["precision"]))
        work |= {} if weights is None else {"weights": weights.value}
        work["quantised"] = quantised.value
