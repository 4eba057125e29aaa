"""Gated short convolutions (LFM2): a depthwise convolution over a few tokens, gated before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.importers.bodies.mamba import convolution, out_projection
from meshwright.app.importers.parts import Bias, activation, projection
from meshwright.costmodels.model.dims import SSM_INNER
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Projection to two gates and an input of ``ssm_inner`` channels; product, convolution, product; projection."""

    bias: Bias = Bias.NONE

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "conv"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        before, after, x = (activation(name, SSM_INNER) for name in ("gate_before", "gate_after", "conv_x"))
        entry = projection("in_proj", source=source, outputs=(before, after, x), suffixes=("_b", "_c", "_x"), bias=self.bias)
        gated = _product("gate_in", before, x, target="conv_in")
        conv = convolution(gated.outputs, bias=self.bias)
        out = _product("gate_out", after, conv.outputs[0], target="conv_gated")
        return entry, gated, conv, out, out_projection(out.outputs[0], self.bias)


def _product(name: str, gate: Tensor, source: Tensor, *, target: str) -> Operator:
    return Operator(
        name,
        OperatorKind.ELEMENTWISE,
        inputs=(gate, source),
        outputs=(Tensor(target, source.dims),),
        saved=(gate.name, source.name),
        flops_per_element=1.0,
    )
