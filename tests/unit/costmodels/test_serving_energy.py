"""Power of a device that serves, by how long it works and how hard its matrix units do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.models.catalog import model
from meshwright.costmodels.hardware import device
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.queueing.analytic.capacity import Demand
from meshwright.costmodels.serving.engine_profile import ServingPrecision
from meshwright.costmodels.serving.step_time import mean_power_w, model_work
from meshwright.costmodels.units import DType

H100 = device("h100")
SIXTEEN_BITS = ServingPrecision(WeightFormat.BF16, DType.BF16, DType.BF16)


def test_parts_add_up() -> None:
    assert mean_power_w(H100, working=0.0, computing=0.0) == 70.0
    assert mean_power_w(H100, working=1.0, computing=1.0) == pytest.approx(700.0)
    # 630 W between idle and full power: 36% of it for half the time, 64% for a quarter.
    assert mean_power_w(H100, working=0.5, computing=0.25) == pytest.approx(70.0 + 630.0 * (0.36 * 0.5 + 0.64 * 0.25))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_work_never_takes_less(working: float, computing: float, more: float) -> None:
    power_w = mean_power_w(H100, working=working, computing=computing)
    assert 70.0 <= power_w <= 700.0
    assert mean_power_w(H100, working=min(1.0, working + more), computing=computing + more) >= power_w


def test_a_request_computes_its_parameters_twice_a_token() -> None:
    llama = model("llama-3.1-8b")
    work = model_work([(llama.block(run.block).operators, run.repeat) for run in llama.chain], llama.dims)
    table = llama.dims["vocab"] * llama.dims["hidden"]
    # Two FLOPs a parameter but those of the embedding, which is looked up, and the norms, which are not matrices.
    assert work.token_flops + work.logits_flops == pytest.approx(2 * (llama.parameters() - table), rel=1e-3)
    prompt = Demand(
        prompt_tokens=1000.0,
        rounds=0.0,
        kv_tokens=0.0,
        least_kv_tokens=1.0,
        most_kv_tokens=1.0,
        pairs=500500.0,
        least_own_kv_tokens=1.0,
    )
    seconds = work.request_s(prompt, H100, SIXTEEN_BITS, query_tokens=1)
    flops = 1000 * work.token_flops + work.logits_flops + 500500 * work.pair_flops
    assert flops / H100.peak(DType.BF16) < seconds < 1.5 * flops / H100.peak(DType.BF16)
