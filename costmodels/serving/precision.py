"""Number formats of a serving engine: stored weights, everything that computes in 16 bits, and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERTS, FFN, HEADS, SHARED_FFN, VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import is_routed
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.costmodels.units import DType


class Quantised(StrEnum):
    """The weights that a quantised checkpoint stores narrow: all projections of its layers; feed-forward networks and experts
    alone (gpt-oss; NVIDIA's DeepSeek-R1-FP4); or these and the output projection of attention (NVIDIA's DeepSeek-R1-FP4-v2)."""

    PROJECTIONS = "projections"
    FEED_FORWARD = "feed_forward"
    FEED_FORWARD_AND_OUTPUT = "feed_forward_and_output"


@dataclass(frozen=True, slots=True)
class ServingPrecision:
    """Formats: ``weights`` of the quantised products, ``activations`` of everything else (embeddings, norms, router, vocabulary
    head, residual stream), as quantised checkpoints keep them; ``kv`` of the cache."""

    weights: WeightFormat
    activations: DType
    kv: DType
    quantised: Quantised = Quantised.PROJECTIONS

    def of(self, operator: Operator) -> WeightFormat:
        """Format of the operator's weights."""
        if operator.kind is OperatorKind.MATMUL and self._quantises(operator):
            return self.weights
        return WeightFormat(self.activations.value)

    def _quantises(self, operator: Operator) -> bool:
        # The router and the vocabulary head stay in 16 bits.
        if {VOCAB, EXPERTS} & operator.dims and not is_routed(operator):
            return False
        if self.quantised is Quantised.PROJECTIONS or {FFN, SHARED_FFN, EXPERT_FFN} & operator.dims:
            return True
        # The output of attention is the product that adds up what its heads give.
        return self.quantised is Quantised.FEED_FORWARD_AND_OUTPUT and HEADS in operator.contracted_dims
