"""Functions that run as Python first give the same bits compiled, so that a first plan is the plan of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwright.costmodels.calibration.kernel_file import kernel_calibration
from meshwright.costmodels.compiling import CompiledOnceItPays, compiled_once_it_pays
from meshwright.costmodels.curves import attention, gemm
from meshwright.costmodels.curves import gemm as interpolation
from meshwright.costmodels.curves.gemm import Silicon
from meshwright.costmodels.units import DType
from meshwright.solver.stages import layers as layer_kernels

H100 = Silicon(peak_flops=989.4e12, memory_bytes_per_s=3.352e12, element_bytes=2.0)
GENERATOR = np.random.default_rng(7)


def both(function: Any, *arguments: object) -> tuple[bytes, bytes]:
    """The bits of a function's result compiled, and as Python."""
    assert isinstance(function, CompiledOnceItPays)
    return bits(function.dispatcher(*arguments)), bits(function.dispatcher.py_func(*arguments))


def bits(result: object) -> bytes:
    parts = result if isinstance(result, tuple) else (result,)
    return b"".join(np.asarray(part).astype(np.float64).tobytes() for part in parts)


def as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have functions that a Python one calls run as Python too, as they do in a first plan."""
    monkeypatch.setattr(CompiledOnceItPays, "_as_python", 1)


def test_matrix_products_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(monkeypatch)
    curve = kernel_calibration("h100_sxm").gemm[DType.BF16].curve
    edges = np.array([1.0, 16.0, 17.0, 64.0, 65.0, 128.0, 2.0**20])
    m, n, k, batch = (np.concatenate([edges, np.round(2.0 ** GENERATOR.uniform(0, 17, 120))]) for _ in range(4))
    compiled, python = both(gemm.gemms_s, m, n, k, np.minimum(batch, 512.0), curve, H100)
    assert compiled == python


def test_attention_takes_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(monkeypatch)
    calibration = kernel_calibration("h100_sxm")
    batch, heads, group = (2.0 ** GENERATOR.integers(0, 6, 100) for _ in range(3))
    tokens, ones = np.round(2.0 ** GENERATOR.uniform(0, 17, 100)), np.ones(100)
    for queries, curve, function in (
        (tokens, calibration.prefill[DType.BF16][128].curve, attention.prefills_s),
        (ones, calibration.decode[DType.BF16][128].curve, attention.decodes_s),
    ):
        flops = 512 * batch * heads * group * tokens * queries
        shapes = np.stack([flops, queries, tokens, batch, heads * group, heads, 128 * ones], axis=1)
        compiled, python = both(function, shapes, curve, H100)
        assert compiled == python


def test_stages_are_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(monkeypatch)
    for blocks, configs, stages in ((7, 1, 1), (18, 3, 4), (18, 5, 9)):
        static, activation, transient = (
            GENERATOR.uniform(0, 9e9, shape) for shape in ((blocks,), (configs, blocks), (configs, blocks))
        )
        sums = (np.concatenate([[0.0], np.cumsum(static)]), np.pad(np.cumsum(activation, axis=1), ((0, 0), (1, 0))))
        capacity, in_flight = np.full(stages, 80e9), np.arange(stages, 0, -1)
        reach = layer_kernels.memory_reach.dispatcher(*sums, transient, capacity, in_flight)
        time = GENERATOR.uniform(0.1, 1.0, (stages, configs, blocks))
        passing, step, extra = (GENERATOR.uniform(0, 0.1, shape) for shape in (stages, stages, (stages, blocks + 1)))
        rest = layer_kernels.least_rest.dispatcher(time, passing)
        spent = np.pad(np.cumsum(time, axis=2), ((0, 0), (0, 0), (1, 0)))
        limit = 1.3 * float(time.min(axis=1).sum()) / stages
        asked: list[tuple[Callable[..., Any], tuple[object, ...]]] = [
            (layer_kernels.memory_reach, (*sums, transient, capacity, in_flight)),
            (layer_kernels.least_shortage, (*sums, transient, capacity / 4, in_flight)),
            (layer_kernels.least_rest, (time, passing)),
            (layer_kernels.least_tail, (spent, extra, passing, passing, step, reach, rest, 3.0, limit, np.inf)),
        ]
        for function, arguments in asked:
            compiled, python = both(function, *arguments)
            assert compiled == python, function


def test_every_function_that_runs_as_python_first_is_compared_here() -> None:
    """A function that is called by none of those that are compared would go unnoticed."""
    named = {
        name
        for module in (gemm, attention, interpolation, layer_kernels)
        for name, value in vars(module).items()
        if isinstance(value, CompiledOnceItPays)
    }
    compared = {"gemms_s", "prefills_s", "decodes_s", "memory_reach", "least_shortage", "least_rest", "least_tail"}
    called = {"gemm_s", "modelled_gemm_s", "log_correction", "covered_rows", "tile_waves", "cell", "bilinear", "trilinear"}
    called |= {
        "prefill_s",
        "modelled_prefill_s",
        "decode_s",
        "modelled_decode_s",
        "attention_shape",
        "_time_reach",
        "_cut_windows",
    }
    assert named == compared | called


def test_work_decides_when_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(values: Any) -> Any:
        return values * 2.0

    function = compiled_once_it_pays(pays_after=10)(doubled)
    assert isinstance(function, CompiledOnceItPays)
    monkeypatch.setattr("meshwright.costmodels.compiling.is_on_disk", lambda dispatcher: False)
    counts = []
    for _ in range(3):
        function(np.ones(4))
        counts.append(len(function.dispatcher.signatures))
    assert counts == [0, 0, 1]


def test_a_function_on_disk_runs_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(value: float) -> float:
        return value / 2.0

    function = compiled_once_it_pays(pays_after=10)(halved)
    assert isinstance(function, CompiledOnceItPays)
    monkeypatch.setattr("meshwright.costmodels.compiling.is_on_disk", lambda dispatcher: True)
    assert function(3.0) == 1.5
    assert len(function.dispatcher.signatures) == 1
