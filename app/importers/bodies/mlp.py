"""Dense feed-forward networks, gated (SwiGLU, GeGLU) and plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.importers.parts import (
    FFN,
    HIDDEN,
    Bias,
    activation,
    activation_flops,
    projection,
)
from costmodels.operators import Operator, OperatorKind, Tensor


class Gate(StrEnum):
    """Whether the activation function acts on a gate that multiplies the up projection."""

    GATED = "gated"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward network of width ``ffn``; gate and up projection are one kernel."""

    gate: Gate
    function: str
    bias: Bias = Bias.NONE

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with experts."""
        return "dense"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the down projection, whose output is the body's."""
        entry = self._entry(source)
        hidden_units = activation("mlp_act", FFN)
        act = activation_operator("act", self.function, inputs=entry.outputs, target=hidden_units)
        out = activation("mlp_out", HIDDEN)
        down = projection(
            "down_proj",
            source=hidden_units,
            outputs=(out,),
            suffixes=("_down",),
            bias=self.bias,
        )
        return entry, act, down

    def _entry(self, source: Tensor) -> Operator:
        if self.gate is Gate.PLAIN:
            return projection(
                "up_proj",
                source=source,
                outputs=(activation("up", FFN),),
                suffixes=("_up",),
                bias=self.bias,
            )
        gate_and_up = (activation("gate", FFN), activation("up", FFN))
        return projection(
            "gate_up_proj",
            source=source,
            outputs=gate_and_up,
            suffixes=("_gate", "_up"),
            bias=self.bias,
        )


def activation_operator(name: str, function: str, *, inputs: tuple[Tensor, ...], target: Tensor) -> Operator:
    """Activation function of the first input, times the second where there is one (its product is one FLOP more)."""
    return Operator(
        name,
        OperatorKind.ELEMENTWISE,
        inputs=inputs,
        outputs=(target,),
        saved=tuple(tensor.name for tensor in inputs),
        flops_per_element=activation_flops(function) + (len(inputs) - 1),
    )
