"""A run of nanotron, by its YAML file, in the words of plans."""

from __future__ import annotations

from typing import Any

from meshwright.app.launching.flags.flag import ParsedCommand
from meshwright.app.launching.flags.nanotron import NANOTRON, NanotronKeys
from meshwright.app.service.explaining.launch_files import config_of, words_of_config
from meshwright.app.service.explaining.start import Start
from meshwright.app.service.explaining.stated import StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.launchers.nanotron_stages import layers_of_stages

_FORMATS = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}


def read_nanotron(start: Start) -> StatedTraining:
    """Return what a run of nanotron states; raises InvalidInputError for a value that can't be."""
    read = _read(start)
    keys = NanotronKeys(**read.fields)
    tp, pp, cp = keys.tp or 1, keys.pp or 1, keys.cp or 1
    parts, problem = _parts(keys, pp)
    zero_stage = keys.zero_stage or 0
    notes = () if zero_stage < 2 else (f"optimizer.zero_stage {zero_stage} is ZeRO-1 in nanotron",)
    return StatedTraining(
        launcher=Launcher.NANOTRON,
        given=read.given,
        environment=start.environment,
        notes=notes,
        problems=() if problem is None else (problem,),
        config=_config(keys),
        world=start.world or ((keys.dp or 1) * tp * pp * cp if keys.dp is not None else None),
        data_parallel=keys.dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=keys.ep or 1,
        parts=parts,
        schedule=_schedule(keys).value if pp > 1 else None,
        microbatch=keys.microbatch,
        accumulation=keys.accumulation,
        seq_len=keys.seq_len,
        zero_stage=min(zero_stage, 1),
        sequence_parallel=tp > 1 and (keys.tp_mode or "").casefold() == "reduce_scatter",
        recompute=Recompute.FULL if keys.recomputes else Recompute.NONE,
        workload=_workload(keys),
    )


def _read(start: Start) -> ParsedCommand:
    """The keys of the file that the command names, or of the file that was given alone."""
    own = NANOTRON.read(start.words)
    document = start.document
    if document is None:
        named = own.fields.get("config_file")
        if named is None:
            raise InvalidInputError("a run of nanotron reads all from a file", given="no --config-file")
        document = config_of(start.files.required(named, flag="--config-file"))
    of_file = NANOTRON.read([] if document is None else words_of_config(document))
    fields = {**of_file.fields, **own.fields}
    return ParsedCommand(fields, (*own.given, *of_file.given), own.words)


def _parts(keys: NanotronKeys, pp: int) -> tuple[tuple[int, ...], str | None]:
    """Decoder layers of each stage, which nanotron cuts by itself, and why there are none."""
    sizes = (keys.layers, keys.hidden, keys.ffn, keys.vocab)
    if pp == 1 or None in sizes:
        return (), None
    layers, hidden, ffn, vocab = (size or 0 for size in sizes)
    found = layers_of_stages(layers=layers, hidden=hidden, heads_width=hidden, ffn=ffn, vocab=vocab, pp=pp)
    return (found, None) if found is not None else ((), f"nanotron finds no {pp} stages for {layers} layers")


def _schedule(keys: NanotronKeys) -> Schedule:
    """The pipeline's schedule; all forward passes first unless told (parallelism_config.py)."""
    known = {name: schedule for schedule, name in names_in(PipelineRuntime.NANOTRON).items()}
    named = (keys.engine or "afab").casefold()
    if named not in known:
        raise InvalidInputError("parallelism.pp_engine can't be this", given=keys.engine, allowed=", ".join(known))
    return known[named]


def _config(keys: NanotronKeys) -> dict[str, Any] | None:
    if None in (keys.layers, keys.hidden, keys.heads, keys.ffn, keys.vocab):
        return None
    return {
        "model_type": "qwen2" if keys.qkv_bias else "llama",
        "num_hidden_layers": keys.layers,
        "hidden_size": keys.hidden,
        "num_attention_heads": keys.heads,
        "num_key_value_heads": keys.kv_heads or keys.heads,
        "intermediate_size": keys.ffn,
        "vocab_size": keys.vocab,
        "tie_word_embeddings": bool(keys.tied),
    }


def _workload(keys: NanotronKeys) -> dict[str, Any]:
    """Fields of the request's workload."""
    precision = keys.dtype or "bfloat16"
    if precision not in _FORMATS:
        raise InvalidInputError("model.dtype can't be this", given=precision, allowed=", ".join(_FORMATS))
    if (keys.optimizer or "adamW").casefold() != "adamw":
        raise InvalidInputError("no cost model covers this optimizer", given=keys.optimizer, allowed="adamW")
    return {"precision": _FORMATS[precision].value, "optimizer": Optimizer.ADAMW.value}
