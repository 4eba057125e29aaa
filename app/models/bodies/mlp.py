"""Dense feed-forward networks, gated (SwiGLU, GeGLU) and plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.app.models.architecture import Bias, activation, activation_flops, projection
from meshwright.costmodels.model.dims import FFN, HIDDEN
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight


class Gate(StrEnum):
    """The gate of a feed-forward network: the activation function acts on a gate that multiplies the up projection, or there is
    none."""

    GATED = "gated"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward network of width ``ffn``; gate and up projection are one kernel.

    ``width`` has more dims than ``ffn`` where layers differ in their width: ``ffn`` is then what all widths are multiples of.
    ``function_weights`` is what the activation function learns.
    """

    gate: Gate
    function: str
    bias: Bias = Bias.NONE
    width: tuple[str, ...] = (FFN,)
    function_weights: tuple[Weight, ...] = ()

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with experts."""
        return "dense"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the down projection, whose output is the body's."""
        entry, activate, down = feed_forward(
            source,
            prefix="",
            width=self.width,
            output=activation("mlp_out", HIDDEN),
            gate=self.gate,
            function=self.function,
            bias=self.bias,
        )
        return entry, replace(activate, weights=self.function_weights), down


def feed_forward(
    source: Tensor, *, prefix: str, width: tuple[str, ...], output: Tensor, gate: Gate, function: str, bias: Bias
) -> tuple[Operator, Operator, Operator]:
    """Entry projection, activation function, down projection; ``prefix`` names operators and tensors.

    The last dim of ``source`` is contracted with weights of the dims ``width``, and comes back in ``output``.
    """
    rows = source.dims[:-1]
    up, act = Tensor(f"{prefix}up", (*rows, *width)), Tensor(f"{prefix}act_out", (*rows, *width))
    if gate is Gate.GATED:
        gate_and_up = (Tensor(f"{prefix}gate", (*rows, *width)), up)
        entry = projection(f"{prefix}gate_up_proj", source=source, outputs=gate_and_up, suffixes=("_gate", "_up"), bias=bias)
    else:
        entry = projection(f"{prefix}up_proj", source=source, outputs=(up,), suffixes=("_up",), bias=bias)
    activate = activation_operator(f"{prefix}act", function, inputs=entry.outputs, target=act)
    down = projection(f"{prefix}down_proj", source=act, outputs=(output,), suffixes=("_down",), bias=bias)
    return entry, activate, down


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


# One product in the place of a layer's attention or feed-forward network.

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
