"""Muon: what orthogonalizing takes, and of which matrices."""

from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.compute import NEWTON_SCHULZ_STEPS, matmul_s, matrices_of, orthogonalization_s
from meshwright.costmodels.model.operators import OperatorKind, parameters
from meshwright.costmodels.units import DType

DEVICE = node_type("dgx-h100").device


def test_a_step_is_three_products() -> None:
    """Of the wide products of Llama-3.1-8B: near the FLOPs of Jordan et al. at the device's rate, long side or short first."""
    seconds = orthogonalization_s(DEVICE, rows=4096, columns=14336)
    assert seconds == orthogonalization_s(DEVICE, rows=14336, columns=4096)
    flops = NEWTON_SCHULZ_STEPS * (4 * 4096**2 * 14336 + 2 * 4096**3)
    rate = 2 * 4096**2 * 14336 / float(matmul_s(DEVICE, DType.BF16, 4096, 4096, 14336))
    assert seconds == pytest.approx(flops / rate, rel=0.1)
    assert orthogonalization_s(DEVICE, rows=4096, columns=14336, matrices=3) == pytest.approx(3 * seconds)


def test_matrices_are_those_of_products() -> None:
    graph = model("llama-3.1-8b")
    found = [m for block in graph.blocks for operator in block.operators for m in matrices_of(operator, graph.dims)]
    assert (4096, 1024, 1) in found and (4096, 14336, 1) in found and (14336, 4096, 1) in found
    stored = sum(rows * columns * number for rows, columns, number in found)
    products = [op for block in graph.blocks for op in block.operators if op.kind is OperatorKind.MATMUL]
    assert stored == sum(parameters(operator, graph.dims) for operator in products)


def test_each_expert_is_a_matrix() -> None:
    graph = model("qwen3-30b-a3b")
    found = [m for block in graph.blocks for operator in block.operators for m in matrices_of(operator, graph.dims)]
    assert (2048, 768, 128) in found and (768, 2048, 128) in found
