"""Low-rank adapters beside frozen weights: which products have one, and what it adds (LoRA, Hu et al. 2021, section 4.1).

Beside a weight of k by n there is a product of k by r and one of r by n, whose result is added to the weight's. Frozen weights
may be stored in four bits (QLoRA, Dettmers et al. 2023) or eight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import VOCAB
from meshwright.costmodels.model.implementation import AdapterTarget, TrainedWeights
from meshwright.costmodels.model.operators import Operator, OperatorKind, Weight
from meshwright.costmodels.units import STRICT_RECORD, DType, PositiveInt


class AdapterKind(StrEnum):
    """What is trained beside a weight."""

    LORA = "lora"
    DORA = "dora"
    """A magnitude for each output besides, over the norm of weight and adapter, which is taken anew in each forward pass and
    has no gradient (Liu et al. 2024, eq. 5 and section 4.3)."""


class BaseFormat(StrEnum):
    """The format in which frozen weights are stored."""

    WORKING = "working"
    NF4 = "nf4"
    """Four bits a weight, with double quantisation (QLoRA, section 3): the layers' products; embedding, norms and head stay."""
    INT8 = "int8"
    """A byte a weight, and a scale in fp32 for each output (LLM.int8(), Dettmers et al. 2022, section 2): the same products."""


_WEIGHTS = {
    AdapterTarget.Q: "wq",
    AdapterTarget.K: "wk",
    AdapterTarget.V: "wv",
    AdapterTarget.O: "wo",
    AdapterTarget.GATE: "w_gate",
    AdapterTarget.UP: "w_up",
    AdapterTarget.DOWN: "w_down",
}

ATTENTION = frozenset({AdapterTarget.Q, AdapterTarget.K, AdapterTarget.V, AdapterTarget.O})
"""Projections of attention."""

NF4_BYTES = (4.0 + 8.0 / 64 + 32.0 / (64 * 256)) / 8.0
"""Bytes of a weight: 4 bits, a constant of 8 bits for 64 weights, and one of 32 bits for 256 of those (QLoRA, section 3)."""

WEIGHT_BYTES = {BaseFormat.NF4: NF4_BYTES, BaseFormat.INT8: 1.0}
"""Bytes of a packed weight, without the scales of outputs."""

_SCALE_BYTES = 4
"""Bytes of the scale of an output's int8 weights."""

ADAPTER_DTYPE = DType.FP32
"""Adapters are kept in fp32 and need no master copy (PEFT's autocast_adapter_dtype, which is on)."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapters of a run.

    rank          r of each
    targets       projections that have one, all unless given; those that a model lacks have none, as in PEFT
    base_format   format in which the frozen weights are stored
    kind          what is trained beside each
    """

    __pydantic_config__ = STRICT_RECORD

    rank: PositiveInt
    targets: tuple[AdapterTarget, ...] = tuple(AdapterTarget)
    base_format: BaseFormat = BaseFormat.WORKING
    kind: AdapterKind = AdapterKind.LORA

    def __post_init__(self) -> None:
        if not self.targets or len(set(self.targets)) != len(self.targets):
            raise WorkloadError(
                "targets of an adapter are projections, each once",
                given=[target.value for target in self.targets],
                allowed=", ".join(AdapterTarget),
            )

    @property
    def in_words(self) -> str:
        """The adapters in a few words: kind, rank, what they lie beside where not all projections, format of the base."""
        kind = {AdapterKind.LORA: "LoRA", AdapterKind.DORA: "DoRA"}[self.kind]
        beside = "" if len(self.targets) == len(AdapterTarget) else f" beside {', '.join(self.targets)}"
        over = "" if self.base_format is BaseFormat.WORKING else f" over {self.base_format} weights"
        return f"{kind} of rank {self.rank}{beside}{over}"

    def sides(self, operator: Operator, sizes: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        """Return (inputs, outputs) of each weight of an operator that has an adapter, under local sizes."""
        if operator.kind is not OperatorKind.MATMUL:
            return ()
        names = {_WEIGHTS[target] for target in self.targets}
        return tuple(_sides(operator, weight, sizes) for weight in operator.weights if weight.name in names)

    def parameters(self, operator: Operator, sizes: Mapping[str, int]) -> int:
        """Return the parameters of the adapters of an operator."""
        magnitudes = 1 if self.kind is AdapterKind.DORA else 0
        return sum(self.rank * (inputs + outputs) + magnitudes * outputs for inputs, outputs in self.sides(operator, sizes))

    def kept_values(self, operator: Operator, sizes: Mapping[str, int]) -> int:
        """Return the values of a token that adapters keep: latents, and what both products gave, which magnitudes multiply."""
        products = 2 if self.kind is AdapterKind.DORA else 0
        return sum(self.rank + products * outputs for _, outputs in self.sides(operator, sizes))

    def made_at_once(self, operator: Operator, sizes: Mapping[str, int]) -> int:
        """Return the elements of weights that a product makes anew: one unpacked, and for a norm an adapter's and their sum."""
        summed = 2 if self.kind is AdapterKind.DORA else 0
        widest = max((inputs * outputs for inputs, outputs in self.sides(operator, sizes)), default=0)
        return max(self.packed(operator, sizes), default=0) + summed * widest

    def packed_bytes(self, operator: Operator, sizes: Mapping[str, int]) -> float:
        """Return the bytes of an operator's packed weights."""
        packed = self.packed(operator, sizes)
        if self.base_format is BaseFormat.NF4:
            return NF4_BYTES * sum(packed)
        read = math.prod(sizes[dim] for dim in operator.contracted_dims)
        return sum(elements + _SCALE_BYTES * (elements // read) for elements in packed)

    def packed(self, operator: Operator, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the elements of each weight of an operator that is stored in fewer bits than the working format."""
        if self.base_format is BaseFormat.WORKING or operator.kind is not OperatorKind.MATMUL or VOCAB in operator.dims:
            return ()
        matrices = (weight for weight in operator.weights if set(operator.contracted_dims) <= set(weight.dims))
        return tuple(weight.elements(sizes) for weight in matrices if weight.tied_to is None)


def has_adapter(
    operator: Operator, trained: TrainedWeights, adapter: Adapter | None, targets: tuple[AdapterTarget, ...] = ()
) -> bool:
    """Return True for a product with an adapter beside it: of ``adapter``, else of an unknown rank, beside ``targets``, and
    where there are none beside each product."""
    if operator.kind is not OperatorKind.MATMUL or trained is TrainedWeights.ALL:
        return False
    if adapter is not None:
        return is_target(operator, adapter.targets)
    return not targets or is_target(operator, targets)


def is_target(operator: Operator, targets: tuple[AdapterTarget, ...]) -> bool:
    """Return True for an operator with one of the projections."""
    names = {_WEIGHTS[target] for target in targets}
    return any(weight.name in names for weight in operator.weights)


def _sides(operator: Operator, weight: Weight, sizes: Mapping[str, int]) -> tuple[int, int]:
    inputs = outputs = 1
    for dim in weight.dims:
        if dim in operator.contracted_dims:
            inputs *= sizes[dim]
        else:
            outputs *= sizes[dim]
    return inputs, outputs
