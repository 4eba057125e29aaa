"""Measurements with PyTorch on a CPU, where PyTorch is installed; and what is said where it is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.calibrations.profile_shapes import RANGES, Backend, shapes_of
from app.calibrations.profiling import ProfileTask, profile
from costmodels.samples import SampleError, SampleKind, check_samples
from tests.app.command_line import Cli

KINDS = frozenset(SampleKind)


def test_every_kind_has_shapes_and_no_shape_twice() -> None:
    shapes = shapes_of(Backend.CPU, KINDS, ranks=4)
    assert len(set(shapes)) == len(shapes)
    assert {shape.kind for shape in shapes} == KINDS - {SampleKind.LAUNCH}
    assert {shape.ranks for shape in shapes if shape.kind is SampleKind.ALL_REDUCE} == {2, 4}
    assert {shape.kind for shape in shapes_of(Backend.CUDA, KINDS, ranks=1)} >= {SampleKind.LAUNCH, SampleKind.GEMM}
    assert max(2.0 * s.m * s.n * s.k for s in shapes) <= RANGES[Backend.CPU].most_flops


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("numpy")
    kinds = frozenset({SampleKind.STREAM, SampleKind.DECODE_ATTENTION} | ({SampleKind.BROADCAST} if ranks > 1 else set()))
    seen: list[tuple[int, int]] = []
    task = ProfileTask("here", Backend.CPU, kinds, ranks=ranks, threads=1, repeat_s=1e-4)
    samples = profile(task, lambda done, total, what: seen.append((done, total)))
    check_samples(samples)
    assert len(samples) == len(shapes_of(Backend.CPU, kinds, ranks=ranks))
    assert seen == [(n, len(samples)) for n in range(1, len(samples) + 1)]
    assert set(samples.device.tolist()) == {"here"}
    assert all(software.startswith("torch ") for software in samples.software.tolist())


def test_gpus_that_are_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    task = ProfileTask("gpu", Backend.CUDA, KINDS, ranks=1, threads=1, repeat_s=1e-3)
    with pytest.raises(SampleError, match="CUDA"):
        profile(task, lambda done, total, what: None)
    with pytest.raises(SampleError, match="nothing to measure"):
        profile(replace(task, backend=Backend.CPU, kinds=frozenset({SampleKind.ALL_REDUCE})), lambda done, total, what: None)


def test_without_pytorch_the_command_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli("calibrate", "profile", "here", "-o", str(tmp_path / "here.csv")) == 2
    assert "pip install 'meshwright[profile]'" in cli.err
    assert not (tmp_path / "here.csv").exists()
