"""Routed experts in a step of a serving engine: the fused kernels of the fullest rank, and what moves tokens to and from them.

With one group of dense ranks every rank has all tokens: partial results are added up by one all-reduce (vLLM and TensorRT-LLM
without attention data parallelism). With several, of requests or of shares of prompts, tokens are dispatched and results
combined between them: the faster of gathering everything and reduce-scattering results (vLLM, allgather_reducescatter) and of
sending each token to the ranks of its experts (DeepEP; vLLM, deepep).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.kernels import Fitted
from meshwright.costmodels.calibration.serving import serving_calibration
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.curves.gemm import ExpertCurve, ExpertWork, Silicon, experts_s
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERT_LATENT, EXPERTS, HIDDEN, TOP_K
from meshwright.costmodels.model.experts import ExpertPlacement, ExpertRouting, expert_placement
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import Operator
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.network.token_dispatch import expert_choice, places_reached
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.operators import ServedOn, collective_seconds, serving_all_reduce_s

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


@dataclass(frozen=True, eq=False)
class Dispatch:
    """The seconds in which tokens come to their experts and results back, by tokens: one all-reduce of what ranks have in
    common, or the faster of two ways between groups of dense ranks, and what the ranks of a group share among them.

    gathered_s    everything gathered, results scattered; None for one group
    exchanged_s   each token sent to the ranks of its experts and back; None where experts are split over ranks
    """

    common_s: FloatArray
    gathered_s: FloatArray | None = None
    exchanged_s: FloatArray | None = None

    @property
    def total_s(self) -> FloatArray:
        """All of it."""
        if self.gathered_s is None:
            return self.common_s
        ways = self.gathered_s if self.exchanged_s is None else np.minimum(self.gathered_s, self.exchanged_s)
        return np.asarray(ways + self.common_s)


def routed_experts_s(operators: Sequence[Operator], on: ServedOn, routing: ExpertRouting, tokens: FloatArray) -> FloatArray:
    """Seconds of a block's experts for ``tokens`` of each group of dense ranks; ``operators`` are its routed products."""
    everywhere = tokens * on.token_groups
    sent_s = dispatch(on, tokens, everywhere).total_s if on.ranks.grid.ranks > 1 else np.zeros_like(tokens)
    return np.asarray(expert_kernels_s(operators, on, routing, everywhere) + sent_s)


def expert_kernels_s(operators: Sequence[Operator], on: ServedOn, routing: ExpertRouting, everywhere: FloatArray) -> FloatArray:
    """Seconds of the experts' kernels on the fullest rank, for so many tokens of all groups of dense ranks together."""
    grid = on.ranks.grid
    placement = placement_of(on, routing)
    reads = EXPERT_LATENT if EXPERT_LATENT in on.dims else HIDDEN
    matrices = sum(1 for operator in operators for weight in operator.weights if {reads, EXPERT_FFN} <= set(weight.dims))
    ones = np.ones_like(everywhere)
    work = ExpertWork(
        rows=np.maximum(1.0, placement.fullest_rows(everywhere)),
        active=placement.most_active(everywhere),
        local=placement.slots * ones,
        hidden=on.dims[reads] * ones,
        width=np.ceil(on.dims[EXPERT_FFN] / grid.expert_tp) * ones,
        matrices=float(matrices) * ones,
    )
    weights = on.precision.of(operators[0])
    fitted, stands = expert_curve(on.device, weights, on.engine)
    # Weights that are widened in the kernel are read narrow and multiplied at the wider format's rate.
    silicon = Silicon(on.device.peak(stands.computed_in(on.device)), on.device.memory_bytes_per_s, weights.size_bytes)
    return np.asarray(experts_s(work, fitted.curve, silicon))


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


def dispatch(on: ServedOn, tokens: FloatArray, everywhere: FloatArray) -> Dispatch:
    """Times of ``tokens`` of a group of dense ranks and of ``everywhere``, those of all groups."""
    grid, stage = on.ranks.grid, on.ranks.stage
    one_bytes = on.dims[HIDDEN] * on.precision.activations.size_bytes
    if on.token_groups == 1:
        return Dispatch(serving_all_reduce_s(tokens * one_bytes, stage, on.engine))
    # Ranks of one such group hold the same tokens: each sends its share, and they share what comes back.
    shared_s = collective_seconds(Collective.ALL_GATHER, tokens * one_bytes, on.ranks.dense)
    gathered_s = collective_seconds(Collective.ALL_GATHER, everywhere * one_bytes, stage)
    gathered_s = gathered_s + collective_seconds(Collective.REDUCE_SCATTER, everywhere * one_bytes, stage)
    if grid.expert_tp > 1:
        return Dispatch(shared_s, gathered_s)
    # A token goes once to each rank that holds one of its experts.
    reached = places_reached(expert_choice(on.dims), grid.ranks)
    sent_bytes = tokens * one_bytes / grid.dense_tp * reached
    return Dispatch(shared_s, gathered_s, 2.0 * collective_seconds(Collective.ALL_TO_ALL, sent_bytes, stage))
