"""Power of devices that serve, from how long they work for a request and what their matrix units do in that time.

Power is the idle power, and of what lies between it and full power one share for every second at work, whatever limits the
step, and the rest in proportion to the rate of the matrix units: decoding waits for memory, prompts run boards into their
power limit. Host, network and cooling are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import matmul_s
from meshwright.costmodels.model.dims import BATCH, SEQ, VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind, forward_flops
from meshwright.costmodels.queueing.analytic.capacity import Demand
from meshwright.costmodels.serving.precision import ServingPrecision
from meshwright.costmodels.units import DType

WORKING_ACTIVITY = 0.36
"""Share of the range that work takes without the matrix units: an H100 that decodes one sequence takes 300 W of 700, 70 of
them idle. The 300 W are of the ML.ENERGY Benchmark v3.0 as vLLM Semantic Router's reference of power models quotes it; H200
decoding takes 137 to 300 W (arXiv 2605.11999). Taken for all devices."""

_LARGE = 8192
"""Side of a square product at which matrix units run as fast as they do."""


@dataclass(frozen=True, slots=True)
class ModelWork:
    """FLOPs of a model: of a token, of a token's logits, and of a pair of a query and a key in all layers."""

    token_flops: float
    logits_flops: float
    pair_flops: float

    def request_s(self, demand: Demand, device: Device, precision: ServingPrecision, *, query_tokens: int) -> float:
        """Seconds in which one device's matrix units do a mean request at their best: its prompt, the ``query_tokens`` of each
        round over what the cache holds, and their logits."""
        decoded = demand.rounds * query_tokens
        of_products = (demand.prompt_tokens + decoded) * self.token_flops
        in_full = (1.0 + decoded) * self.logits_flops + (demand.pairs + decoded * demand.kv_tokens) * self.pair_flops
        product_rate = _matrix_flops_per_s(device, precision.weights.computed_in(device))
        return of_products / product_rate + in_full / _matrix_flops_per_s(device, precision.activations)


def model_work(blocks: Iterable[tuple[Sequence[Operator], int]], dims: Mapping[str, int]) -> ModelWork:
    """Work of blocks, each with its copies; windows of attention are taken as whole caches."""
    token, logits, pair = 0.0, 0.0, 0.0
    one_token = {**dims, BATCH: 1, SEQ: 1}
    for operators, copies in blocks:
        for operator in operators:
            flops = copies * forward_flops(operator, one_token)
            if operator.kind is OperatorKind.ATTENTION:
                pair += flops
            elif operator.kind is OperatorKind.MATMUL and VOCAB in operator.dims:
                logits += flops
            elif operator.kind in (OperatorKind.MATMUL, OperatorKind.SCAN, OperatorKind.PRODUCT):
                token += flops
    return ModelWork(token, logits, pair)


def _matrix_flops_per_s(device: Device, dtype: DType) -> float:
    """Return the FLOP/s that the matrix units reach in a large product."""
    return 2.0 * _LARGE**3 / float(matmul_s(device, dtype, _LARGE, _LARGE, _LARGE))


def mean_power_w(device: Device, *, working: float, computing: float) -> float:
    """Power of one device that works a share of the time, and whose matrix units would take a share of it at their best."""
    active = WORKING_ACTIVITY * working + (1.0 - WORKING_ACTIVITY) * min(computing, working)
    return device.idle_power_w + (device.power_w - device.idle_power_w) * min(1.0, active)
