"""A stated implementation reaches the launcher: each field as a flag, or as what the launcher can't be told."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.parts.implemented import MEASURED
from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    GradientReduction,
    HeadGradients,
    HostPath,
    Implementation,
    LossKernels,
)
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.launchers.table import TRAINERS
from tests.unit.app.exporters.megatron_lm import expected_parameters, question
from tests.unit.app.exporters.plans import flags, training
from tests.unit.app.exporters.real_tools import ask

HINTS = get_type_hints(StatedImplementation)


def values(name: str) -> list[Any]:
    """The values that a field may have."""
    kinds = [kind for kind in HINTS[name].__args__ if kind is not type(None)]
    assert len(kinds) == 1, name
    if get_origin(kinds[0]) is tuple:
        return [(), (get_args(kinds[0])[0].Q,)]
    assert issubclass(kinds[0], StrEnum), name
    return list(kinds[0])


CHOICES = [
    (name, value) for name in (field.name for field in fields(Implementation)) if name not in MEASURED for value in values(name)
]


def exported(launcher: Launcher, stated: dict[str, Any], **plan: Any) -> Export:
    answer, request = training(dp=2, **plan)
    decided = StatedImplementation(**stated).decided(TRAINERS[launcher].implementation)
    workload = replace(request.workload, implementation=decided)  # type: ignore[arg-type]
    return export(answer, replace(request, workload=workload), launcher.value)  # type: ignore[arg-type]


@pytest.mark.parametrize("launcher", list(TRAINERS))
def test_the_launchers_own_implementation_changes_nothing_when_it_is_stated(launcher: Launcher) -> None:
    assert exported(launcher, {}) == export(*training(dp=2), launcher.value)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(("name", "value"), CHOICES)
@pytest.mark.parametrize("launcher", list(TRAINERS))
def test_each_choice_is_written_or_said_to_be_lost(launcher: Launcher, name: str, value: Any) -> None:
    own = TRAINERS[launcher].implementation
    plain, stated = exported(launcher, {}), exported(launcher, {name: value})
    if value == (own.loss if name == "stated_loss" else getattr(own, name)):
        assert stated == plain
        return
    written = (stated.command, stated.files) != (plain.command, plain.files)
    said = [line for line in stated.inexpressible if line.startswith(f"implementation.{name}: ")]
    graphs = (launcher, name, value) == (Launcher.TORCHTITAN, "host", HostPath.CUDA_GRAPHS)
    # Without a word torchtitan captures graphs.
    assert graphs or written != bool(said)
    chosen = value if isinstance(value, tuple) else (value,)
    assert all(str(each.value) in line for line in said for each in chosen)


@pytest.mark.parametrize("launcher", list(TRAINERS))
def test_what_was_measured_of_a_process_asks_for_no_flag(launcher: Launcher) -> None:
    assert exported(launcher, {"context_bytes": 1}) == exported(launcher, {})


def test_megatron_captures_layers_where_it_can() -> None:
    graphs = {"host": HostPath.CUDA_GRAPHS}
    given = flags(exported(Launcher.MEGATRON_LM, graphs))
    assert given["--cuda-graph-impl"] == ("transformer_engine",) and "--cuda-graph-scope" not in given
    for plan, words in (({"recompute": [Recompute.FULL]}, "full recompute"), ({"zero_stage": 3}, "Megatron-FSDP")):
        without = exported(Launcher.MEGATRON_LM, graphs, **plan)
        assert "--cuda-graph-impl" not in flags(without)
        assert any(words in line and "implementation.host" in line for line in without.inexpressible)


@pytest.mark.slow
def test_megatron_core_takes_the_flags() -> None:
    stated = {
        "host": HostPath.CUDA_GRAPHS,
        "attention_kernels": AttentionKernels.UNFUSED,
        "stated_loss": LossKernels.FUSED_IN_PARTS,
        "dropout": Dropout.MASKED,
    }
    plan, request = training(dp=2)
    whole = replace(request, workload=replace(request.workload, implementation=StatedImplementation(**stated)))  # type: ignore
    given = {name.removeprefix("--"): values for name, values in flags(export(plan, whole, "megatron-lm")).items()}
    assert given["attention-dropout"] == given["hidden-dropout"] == ("0.1",)
    assert {"cuda-graph-impl", "attention-backend", "cross-entropy-loss-fusion"} <= set(given)
    (answer,) = ask("megatron.core", "megatron_core.py", [question(plan, whole)])
    assert answer == {"parameters": expected_parameters(plan)}


def test_gradients_wait_for_the_backward_pass_where_megatron_is_not_told_otherwise() -> None:
    waits = {"reduction": GradientReduction.AFTER_BACKWARD}
    overlaps = {"--overlap-grad-reduce", "--overlap-param-gather"}
    for zero_stage in (0, 1):
        assert not overlaps & set(flags(exported(Launcher.MEGATRON_LM, waits, zero_stage=zero_stage)))
    assert overlaps <= set(flags(exported(Launcher.MEGATRON_LM, {}, zero_stage=1)))
    # Its FSDP sums them in every micro-batch.
    assert overlaps <= set(flags(exported(Launcher.MEGATRON_LM, waits, zero_stage=2)))


def test_head_gradients_wait_for_a_pipeline_alone() -> None:
    deferred = {"head_gradients": HeadGradients.DEFERRED}
    assert "--defer-embedding-wgrad-compute" in flags(exported(Launcher.MEGATRON_LM, deferred, pp=2))
    assert "--defer-embedding-wgrad-compute" not in flags(exported(Launcher.MEGATRON_LM, deferred))


def test_torchtitan_says_when_it_captures_what_was_counted_one_by_one() -> None:
    plain, graphs = (exported(Launcher.TORCHTITAN, stated) for stated in ({}, {"host": HostPath.CUDA_GRAPHS}))
    assert any("captures" in line for line in plain.assumptions)
    assert not any("captures" in line for line in graphs.assumptions)
    assert not any("host" in line for line in graphs.inexpressible)
    piped = exported(Launcher.TORCHTITAN, {"host": HostPath.CUDA_GRAPHS}, pp=2)
    assert any("implementation.host: cuda-graphs" in line for line in piped.inexpressible)


def test_a_compiled_profile_is_compiled() -> None:
    compiled = implementation_profile("torchtitan-0.3-compiled").implementation
    stated = {name: getattr(compiled, name) for name in ("kernels", "stated_loss")}
    found = exported(Launcher.TORCHTITAN, stated)
    assert "--compile.enable" in flags(found)
    assert not any(line.startswith("implementation.") for line in found.inexpressible)
