"""Megatron-Bridge: settings over its recipe of Megatron-LM's defaults, of every size of the model.

A plan is put into Megatron-LM's flags, and those into settings (`recipes`). Rules are those of
megatron/bridge/training/config.py (ConfigContainer.validate) and of megatron-core's records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshwright.app.launching.launchers.megatron_core import (
    environment,
    hyperparameter_notes,
    inexpressible,
    plan_words,
    vocabulary_multiple,
)
from meshwright.app.launching.launchers.megatron_lm import MEGATRON_LM
from meshwright.app.launching.launchers.recipes import MEGATRON_BRIDGE, OWN, RECIPE, key_of
from meshwright.app.launching.parts.command import Words, command_text, node_assumptions, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.implemented import stated_by
from meshwright.costmodels.model.implementation import AttentionKernels, LossKernels
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.decoders import DecoderShape, FeedForward, Positions, decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "0.7"
SCRIPT = "scripts/training/run_recipe.py"
WARMUP_STEPS = 10
"""A stand-in: the recipe's own 500 are more than the steps of another stand-in."""

Setting = tuple[str, str]
"""A key and its value."""

_ELSEWHERE = frozenset(
    (
        *("group-query-attention", "max-position-embeddings", "vocab-size", "make-vocab-size-divisible-by", "tokenizer-type"),
        *("mock-data", "bf16", "fp16", "swiglu", "squared-relu", "no-gradient-accumulation-fusion", "grad-reduce-in-bf16"),
        *("attention-backend", "cross-entropy-loss-fusion", "use-distributed-optimizer"),
    )
)
"""The flags that are said by settings of another form, below."""
_INVERTED = frozenset(("disable_bias_linear", "untie_embeddings_and_output_weights"))
"""The switches whose setting is true where they are off."""
_LISTS = frozenset(("recompute_modules", "hierarchical_context_parallel_sizes", "window_size"))
_PLAIN = re.compile(r"[\w.-]+|\[[\w,.-]*\]")
"""The values that Hydra reads without quotes."""
_FORMATS = {DType.BF16: "bf16", DType.FP16: "fp16", DType.FP32: "fp32"}


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The command of its script over one recipe; data and hyperparameters are stand-ins."""
    plan = pipeline_plan(answer)
    workload, shape = request.workload, decoder_shape(request.model)
    flags = tuple(flags_of(plan_words(plan, request, shape)))
    settings = [
        *settings_of_flags(flags),
        *model_settings(plan, workload, shape),
        *_precision_settings(workload),
        *_state_settings(is_distributed=any(name == "use-distributed-optimizer" for name, _ in flags)),
        ("scheduler.lr_warmup_iters", str(WARMUP_STEPS)),
    ]
    parts = [
        *torchrun(request, plan.devices),
        (SCRIPT, "--recipe", RECIPE, "--mode", "pretrain", "--dataset", "mock"),
        *((f"{key}={_written(value)}",) for key, value in settings),
    ]
    return Export(
        launcher=Launcher.MEGATRON_BRIDGE,
        version=VERSION,
        command=command_text(environment=environment(plan), parts=parts),
        inexpressible=(*inexpressible(plan, workload, shape), *_lost(workload, shape)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "run in a checkout of Megatron-Bridge, with Transformer Engine",
            "--dataset mock, optimizer.lr, train.train_iters and scheduler.lr_warmup_iters are stand-ins that make it start: "
            "put your own there",
            *hyperparameter_notes(request.model.hyperparameters, shape),
        ),
    )


def settings_of_flags(flags: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Setting]:
    """Yield each flag of Megatron-LM as the setting that says the same."""
    for name, values in flags:
        if name in _ELSEWHERE:
            continue
        known = MEGATRON_LM.by_name.get(name)
        field = None if known is None else known.field
        if field is None or field not in {each.field for each in MEGATRON_BRIDGE.flags}:
            yield OWN[name], _list(values) if name == "cuda-graph-scope" else _value(values)
        elif field in _INVERTED:
            yield key_of(field), "false"
        elif field in _LISTS:
            yield key_of(field), _list(values)
        else:
            yield key_of(field), _value(values)
        if field == "seq_length":
            yield "model.seq_length", _value(values)
        if field == "cuda_graph_impl":
            # Transformer Engine's tracker of random numbers, without which its graphs are refused.
            yield "model.use_te_rng_tracker", "true"


def flags_of(parts: Sequence[Words]) -> Iterator[tuple[str, list[str]]]:
    """Yield the flags of a command with their values."""
    name, values = "", list[str]()
    for word in (str(word) for part in parts for word in part):
        if not re.match(r"--[A-Za-z]", word):
            values.append(word)
            continue
        if name:
            yield name, values
        name, has_value, value = word.removeprefix("--").partition("=")
        values = [value] if has_value else []
    if name:
        yield name, values


def _value(values: Sequence[str]) -> str:
    """The value of a setting; that of a switch is true."""
    return " ".join(values) if values else "true"


def _list(values: Sequence[str]) -> str:
    return f"[{','.join(values)}]"


def _written(value: str) -> str:
    """A value as Hydra's grammar takes it."""
    return value if _PLAIN.fullmatch(value) else f"'{value}'"


def model_settings(plan: PipelinePlan, workload: TrainingWorkload, shape: DecoderShape) -> Iterator[Setting]:
    """Yield the parts of the model that Megatron-LM says otherwise, and kernels that it has on unless told."""
    multiple = vocabulary_multiple(shape.vocab, plan.axes.tp) * plan.axes.tp
    yield key_of("vocab_size"), str(-(-shape.vocab // multiple) * multiple)
    # The recipe's tokenizer of numbers may have no more tokens than the model.
    yield "tokenizer.vocab_size", str(shape.vocab - 1)
    gated = shape.gate in (FeedForward.SWIGLU, FeedForward.GEGLU)
    if gated:
        yield key_of("swiglu"), "true"
    functions = {FeedForward.SQUARED_RELU: "squared_relu", FeedForward.RELU: "gelu", FeedForward.GELU: "gelu"}
    yield key_of("squared_relu"), functions.get(shape.gate, "silu")
    if gated or (shape.gate is not FeedForward.SQUARED_RELU and shape.linear_bias):
        yield "model.bias_activation_fusion", "true"
    yield "model.bias_dropout_fusion", "true"
    yield "model.persist_layer_norm", "true"
    if shape.positions is Positions.ROTARY:
        yield "model.apply_rope_fusion", "true"
    parts = stated_by(workload, Launcher.MEGATRON_BRIDGE).loss is LossKernels.FUSED_IN_PARTS
    yield key_of("cross_entropy_loss_fusion"), str(parts).lower()
    if plan.stages[0].zero_stage >= 2:
        yield "model.gradient_accumulation_fusion", "false"


def _precision_settings(workload: TrainingWorkload) -> Iterator[Setting]:
    """Formats of weights and gradients field by field: a named mixture of formats would set gradients, too."""
    yield "mixed_precision", "null"
    name = _FORMATS[workload.precision]
    for half in ("bf16", "fp16"):
        yield f"model.{half}", str(name == half).lower()
        yield f"optimizer.{half}", str(name == half).lower()
    yield "model.params_dtype", name
    yield "optimizer.params_dtype", name
    yield "model.pipeline_dtype", name
    in_16_bits = workload.precision is DType.BF16 and workload.gradient_dtype is DType.BF16
    yield key_of("grad_reduce_in_bf16"), str(not in_16_bits).lower()


def _state_settings(*, is_distributed: bool) -> Iterator[Setting]:
    """The distributed optimizer, which one of two records turns on unless both are told."""
    for key in (key_of("use_distributed_optimizer"), "optimizer.use_distributed_optimizer"):
        yield key, str(is_distributed).lower()


def _lost(workload: TrainingWorkload, shape: DecoderShape) -> Iterator[str]:
    if stated_by(workload, Launcher.MEGATRON_BRIDGE).attention_kernels is AttentionKernels.UNFUSED:
        yield "implementation.attention_kernels: unfused is planned; no setting says so: launched with fused kernels"
    if shape.positions is Positions.LEARNED and shape.n_positions not in (None, workload.seq_len):
        yield f"{shape.n_positions} learned positions: the recipe's model learns as many as a sequence has, {workload.seq_len}"
