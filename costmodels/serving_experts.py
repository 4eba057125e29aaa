"""Routed experts in a step of a serving engine: the fused kernels of the fullest rank, and what moves tokens to and from them.

With one group of dense ranks every rank has all tokens: partial results are added up by one all-reduce (vLLM and TensorRT-LLM
without attention data parallelism). With several, of requests or of shares of prompts, tokens are dispatched and results
combined between them: the faster of gathering everything and reduce-scattering results (vLLM, allgather_reducescatter) and of
sending each token to the ranks of its experts (DeepEP; vLLM, deepep).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from costmodels.cluster import Device
from costmodels.collectives import Collective
from costmodels.engine_profile import ServingEngine
from costmodels.expert_curve import ExpertCurve, ExpertWork, experts_s
from costmodels.expert_routing import ExpertPlacement, ExpertRouting, expert_placement
from costmodels.gemm_curve import Silicon
from costmodels.kernel_calibration import Fitted
from costmodels.one_shot_all_reduce import serving_all_reduce_s
from costmodels.operators import Operator
from costmodels.serving_calibration import serving_calibration
from costmodels.serving_operators import ServedOn, collective_seconds
from costmodels.tensor_parallel import EXPERT_FFN, EXPERTS, HIDDEN, TOP_K
from costmodels.token_dispatch import expert_choice, places_reached
from costmodels.weight_format import WeightFormat

FloatArray = npt.NDArray[np.float64]

_STANDS_FOR = {
    WeightFormat.BF16: (WeightFormat.BF16,),
    WeightFormat.FP16: (WeightFormat.BF16,),
    WeightFormat.FP8: (WeightFormat.FP8, WeightFormat.FP8_BLOCK, WeightFormat.BF16),
    WeightFormat.FP8_BLOCK: (WeightFormat.FP8_BLOCK, WeightFormat.FP8, WeightFormat.BF16),
    WeightFormat.NVFP4: (WeightFormat.NVFP4, WeightFormat.BF16),
    WeightFormat.MXFP4: (WeightFormat.MXFP4, WeightFormat.NVFP4, WeightFormat.BF16),
    WeightFormat.INT8: (WeightFormat.BF16,),
    WeightFormat.INT4: (WeightFormat.BF16,),
}
"""Curves that answer for a format, the nearest first; 16-bit ones where the device widens weights in the kernel."""


class Company(StrEnum):
    """What the other attention groups of a stage bring to the experts: as many tokens, or none."""

    ALIKE = "alike"
    IDLE = "idle"


def routed_experts_s(
    operators: Sequence[Operator], on: ServedOn, routing: ExpertRouting, tokens: FloatArray, *, company: Company
) -> FloatArray:
    """Seconds of a block's experts for ``tokens`` of a group of dense ranks; ``operators`` are its routed products."""
    grid = on.ranks.grid
    placement = placement_of(on, routing)
    groups = on.token_groups if company is Company.ALIKE else on.sharing
    everywhere = tokens * groups
    sent = _dispatch_and_combine_s(on, tokens, groups) if grid.ranks > 1 else np.zeros_like(tokens)
    matrices = sum(1 for operator in operators for weight in operator.weights if {HIDDEN, EXPERT_FFN} <= set(weight.dims))
    ones = np.ones_like(tokens)
    work = ExpertWork(
        rows=np.maximum(1.0, placement.fullest_rows(everywhere)),
        active=placement.most_active(everywhere),
        local=placement.slots * ones,
        hidden=on.dims[HIDDEN] * ones,
        width=np.ceil(on.dims[EXPERT_FFN] / grid.expert_tp) * ones,
        matrices=float(matrices) * ones,
    )
    weights = on.precision.of(operators[0])
    fitted, stands = expert_curve(on.device, weights, on.engine)
    # Weights that are widened in the kernel are read narrow and multiplied at the wider format's rate.
    silicon = Silicon(on.device.peak(stands.computed_in(on.device)), on.device.memory_bytes_per_s, weights.size_bytes)
    return np.asarray(experts_s(work, fitted.curve, silicon) + sent)


def placement_of(on: ServedOn, routing: ExpertRouting) -> ExpertPlacement:
    """Experts of a layer on the ep groups of the stage."""
    return expert_placement(routing, experts=on.dims[EXPERTS], top_k=on.dims[TOP_K], ep=on.ranks.grid.ep)


def expert_curve(device: Device, weights: WeightFormat, engine: ServingEngine) -> tuple[Fitted[ExpertCurve], WeightFormat]:
    """The device's curve of the engine's expert kernels for weights so stored, and the format that it was measured for."""
    calibration = serving_calibration(device.calibration)
    curves = {**calibration.experts, **calibration.engine_experts.get(engine.value, {})}
    usable = (
        stands
        for stands in _STANDS_FOR[weights]
        if stands.value in curves and stands.computed_in(device) is weights.computed_in(device)
    )
    stands = next(usable, WeightFormat.BF16)
    return curves[stands.value], stands


def _dispatch_and_combine_s(on: ServedOn, tokens: FloatArray, groups: int) -> FloatArray:
    grid, stage = on.ranks.grid, on.ranks.stage
    token_bytes = tokens * on.dims[HIDDEN] * on.precision.activations.size_bytes
    if on.token_groups == 1:
        return serving_all_reduce_s(token_bytes, stage, on.engine)
    # Ranks of one such group hold the same tokens: each sends its share, and they share what comes back.
    shared = collective_seconds(Collective.ALL_GATHER, token_bytes, on.ranks.dense)
    all_bytes = token_bytes * groups
    gathered = collective_seconds(Collective.ALL_GATHER, all_bytes, stage)
    gathered = gathered + collective_seconds(Collective.REDUCE_SCATTER, all_bytes, stage)
    if grid.expert_tp > 1:
        return np.asarray(gathered + shared)
    # A token goes once to each rank that holds one of its experts.
    reached = places_reached(expert_choice(on.dims), grid.ranks)
    exchanged = 2.0 * collective_seconds(Collective.ALL_TO_ALL, token_bytes / grid.dense_tp * reached, stage)
    return np.asarray(np.minimum(gathered, exchanged) + shared)
