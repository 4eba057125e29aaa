"""One product in the place of a layer's attention or feed-forward network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.importers.parts import Bias, activation
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

LINEAR_OUT = "linear_out"
"""Dim of the product's output: as wide as the stream, which it is summed with."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A square product; ``name`` says what it stands for."""

    name: str
    bias: Bias = Bias.NONE

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from others."""
        return "linear"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """The product and its output as part of the stream."""
        wide, out = activation(f"{self.name}_wide", LINEAR_OUT), activation(f"{self.name}_out", HIDDEN)
        weights = [Weight("w", (HIDDEN, LINEAR_OUT))] + [Weight("b", (LINEAR_OUT,))] * (self.bias is Bias.ADDED)
        product = Operator(
            f"{self.name}_linear",
            OperatorKind.MATMUL,
            inputs=(source,),
            outputs=(wide,),
            weights=tuple(weights),
            saved=(source.name,),
        )
        renamed = Operator(f"{self.name}_as_stream", OperatorKind.ELEMENTWISE, inputs=(wide,), outputs=(out,))
        return product, renamed
