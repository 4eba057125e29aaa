"""Measurements with PyTorch on a CPU, where PyTorch is installed; and what is said where it is not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.evidence.measuring.profiling import (
    RANGES,
    KernelShape,
    ProfileTask,
    ProfilingDevice,
    _middle_s,
    profile,
    shapes_of,
    spread,
)
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleError, SampleKind, check_samples
from meshwright.costmodels.units import DType
from tests.support.command_line import Cli

KINDS = frozenset(SampleKind)


def test_every_kind_has_shapes_and_no_shape_twice() -> None:
    shapes = shapes_of(ProfilingDevice.CPU, KINDS, ranks=4)
    assert len(set(shapes)) == len(shapes)
    assert {shape.kind for shape in shapes} == KINDS - {SampleKind.LAUNCH}
    assert {shape.ranks for shape in shapes if shape.kind is SampleKind.ALL_REDUCE} == {2, 4}
    assert SampleKind.LAUNCH not in {shape.kind for shape in shapes}
    (launch,) = shapes_of(ProfilingDevice.CPU, frozenset({SampleKind.LAUNCH}), ranks=1)
    assert launch.kind is SampleKind.LAUNCH
    assert {shape.kind for shape in shapes_of(ProfilingDevice.CUDA, KINDS, ranks=1)} >= {SampleKind.LAUNCH, SampleKind.GEMM}
    assert max(2.0 * s.m * s.n * s.k for s in shapes) <= RANGES[ProfilingDevice.CPU].most_flops


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("numpy")
    kinds = frozenset({SampleKind.STREAM, SampleKind.DECODE_ATTENTION} | ({SampleKind.BROADCAST} if ranks > 1 else set()))
    seen: list[tuple[int, int]] = []
    task = ProfileTask("here", ProfilingDevice.CPU, kinds, ranks=ranks, threads=1, repeat_s=1e-4)
    samples = profile(task, lambda done, total, what: seen.append((done, total)))
    check_samples(samples)
    assert len(samples) == len(shapes_of(ProfilingDevice.CPU, kinds, ranks=ranks))
    assert seen == [(n, len(samples)) for n in range(1, len(samples) + 1)]
    assert set(samples.device.tolist()) == {"here"}
    assert all(software.startswith("torch ") for software in samples.software.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("limit", [{"most": 5}, {"within_s": 0.0}])
def test_a_part_of_the_shapes_is_measured(ranks: int, limit: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    kinds = frozenset({SampleKind.STREAM})
    task = ProfileTask("here", ProfilingDevice.CPU, kinds, ranks=ranks, threads=1, repeat_s=1e-4, **limit)
    samples = profile(task, lambda done, total, what: None)
    # One is begun before any clock can end it.
    assert len(samples) == limit.get("most", 1)
    sizes = samples.moved_bytes.tolist()
    assert sizes == sorted(sizes) and set(sizes) < {
        shape.moved_bytes for shape in shapes_of(ProfilingDevice.CPU, kinds, ranks=ranks)
    }


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 13, 100, 1782])
def test_every_beginning_of_the_order_is_spread(count: int) -> None:
    order = spread(count)
    assert sorted(order) == list(range(count))
    for taken in range(4, count, 7):
        chosen = sorted(order[:taken])
        longest = max(b - a for a, b in zip([-1, *chosen], [*chosen, count], strict=True))
        assert longest <= max(4, 4 * count / taken)


def test_gpus_that_are_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    task = ProfileTask("gpu", ProfilingDevice.CUDA, KINDS, ranks=1, threads=1, repeat_s=1e-3)
    with pytest.raises(SampleError, match="CUDA"):
        profile(task, lambda done, total, what: None)
    with pytest.raises(SampleError, match="nothing to measure"):
        profile(
            replace(task, backend=ProfilingDevice.CPU, kinds=frozenset({SampleKind.ALL_REDUCE})), lambda done, total, what: None
        )


def test_without_pytorch_the_command_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli("calibrate", "profile", "here", "-o", str(tmp_path / "here.csv")) == 2
    assert "pip install 'meshwright[profile]'" in cli.err
    assert not (tmp_path / "here.csv").exists()


class Waiting:
    """Kernels whose products take no time and whose collectives wait for another rank."""

    WAIT_S = 2e-3

    def prepared(self, shape: KernelShape) -> Callable[[], None]:
        return (lambda: time.sleep(self.WAIT_S)) if shape.kind in COLLECTIVE_KINDS else (lambda: None)

    def timed_s(self, run: Callable[[], None]) -> float:
        return 0.0

    def per_run(self, shape: KernelShape) -> int:
        return 1

    def agreed(self, repeats: int) -> int:
        return min(repeats, 3)

    def wait_for_ranks(self) -> None:
        pass

    synchronise = wait_for_ranks


def middle_s(monkeypatch: pytest.MonkeyPatch, kind: SampleKind, *, ranks: int, kernels: Any) -> float:
    """Seconds of a kind on a machine of two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    task = ProfileTask("here", ProfilingDevice.CPU, KINDS, ranks=ranks, threads=1, repeat_s=1e-4)
    return _middle_s(kernels, KernelShape(kind, DType.FP32, moved_bytes=4, ranks=ranks), task)


def test_a_collective_holds_the_wait_for_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the collective takes between products counts, not what it takes alone (here nothing).
    assert middle_s(monkeypatch, SampleKind.ALL_REDUCE, ranks=4, kernels=Waiting()) >= Waiting.WAIT_S


def test_kernels_of_ranks_that_share_cores_take_their_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.3])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    # 0.1 s of a core each, of which two ranks run one after the other.
    assert middle_s(monkeypatch, SampleKind.STREAM, ranks=4, kernels=Waiting()) == pytest.approx(0.2)
