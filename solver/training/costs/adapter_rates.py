"""Adapters and packed weights of blocks, for each parameter that a block has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.state_sync import SharedParameters

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AdapterRates:
    """By block: parameters of adapters, and frozen parameters that are packed in four bits, for each frozen parameter.

    Launchers that train adapters hold whole layers on each rank, so both are in proportion to what a rank holds.
    """

    trained: FloatArray
    packed: FloatArray


def adapter_rates(request: TrainingRequest, blocks: Sequence[str]) -> AdapterRates:
    """Return the rates of blocks by name; the workload has adapters."""
    adapter, model = request.workload.adapter, request.model
    assert adapter is not None
    known: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(blocks):
        operators = model.block(name).operators
        trained = sum(adapter.parameters(operator, model.dims) for operator in operators)
        packed = sum(sum(adapter.packed(operator, model.dims)) for operator in operators)
        whole = max(1, model.block_parameters(name))
        known[name] = (trained / whole, packed / whole)
    found = np.array([known[name] for name in blocks], np.float64).reshape(-1, 2)
    return AdapterRates(found[:, 0], found[:, 1])


def adapter_parameters(shared: Sequence[SharedParameters], rates: AdapterRates) -> tuple[SharedParameters, ...]:
    """Return the adapters that stand beside parameters, held by the same ranks."""
    return tuple(replace(share, parameters=share.parameters * rates.trained) for share in shared)
