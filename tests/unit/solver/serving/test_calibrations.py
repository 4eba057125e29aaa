from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving.engines.calibrations import StepPhase, StepPoint, calibrations_used, kernel_shares
from meshwright.solver.serving.engines.layouts import layouts
from tests.unit.solver.serving.requests import cluster, serving_request


def deepseek() -> ServingRequest:
    on = cluster(node="dgx-h200", per_node=8)
    request = serving_request(model_name="deepseek-v3", on=on, precision=DType.FP8, search=Search(tp=(8,), ep=(8,)))
    return replace(request, workload=replace(request.workload, weights=WeightFormat.FP8_BLOCK))


def point(request: ServingRequest, phase: StepPhase, tokens: float, kv_tokens: float = 2000.0) -> StepPoint:
    return StepPoint(next(iter(layouts(request))), phase, tokens, kv_tokens)


@pytest.mark.parametrize("phase", list(StepPhase))
def test_shares_add_up(phase: StepPhase) -> None:
    for request in (serving_request(), deepseek()):
        shares = kernel_shares(request, point(request, phase, 32.0))
        assert sum(used.share for used in shares) == pytest.approx(1.0)


def test_longer_caches_give_attention_a_larger_share() -> None:
    request = serving_request()
    short, long = (
        {used.kind: used.share for used in kernel_shares(request, point(request, StepPhase.DECODE, 64.0, kv))}
        for kv in (500.0, 8000.0)
    )
    assert long["decode_attention/bf16"] > 2 * short["decode_attention/bf16"]


def test_experts_and_latents_are_named_with_their_own_errors() -> None:
    request = deepseek()
    points = (point(request, StepPhase.DECODE, 32.0), point(request, StepPhase.PROMPT, 4000.0))
    used = {use.id: use for use in calibrations_used(request, points)}
    assert {"h200_sxm/experts/fp8_block", "h200_sxm/latent_decode/bf16", "h200_sxm/gemm/fp8"} <= set(used)
    experts = used["h200_sxm/experts/fp8_block"]
    assert "of a decode step" in experts.basis
    assert "of a prompt step" in experts.basis
    assert 0.0 < experts.median_error < experts.p95_error
