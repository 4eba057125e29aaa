"""State-space mixers: Mamba-2 (state-space duality, heads) and Mamba-1 (a state for every channel)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.app.importers.bodies.mlp import activation_operator
from meshwright.app.importers.parts import Bias, NormKind, activation, norm, projection
from meshwright.costmodels.model.dims import (
    CONV_KERNEL,
    DT_RANK,
    HIDDEN,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_INNER,
    SSM_STATE,
)
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight


class OutputNorm(StrEnum):
    """The way in which a Mamba-2 mixer joins its output with the gate: through an RMS norm with weights, or by a product
    alone."""

    GATED_RMS = "gated_rms"
    GATE_ONLY = "gate_only"


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 mixer (survey section 5.3): input projection, depthwise convolution, scan in chunks, gate, projection."""

    chunk: int
    function: str = "silu"
    in_bias: Bias = Bias.NONE
    conv_bias: Bias = Bias.ADDED
    out_bias: Bias = Bias.NONE
    output_norm: OutputNorm = OutputNorm.GATED_RMS

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "mamba"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        heads, groups = (SSM_HEADS, SSM_HEAD_DIM), (SSM_GROUPS, SSM_STATE)
        z, x, dt = activation("z", *heads), activation("ssm_x", *heads), activation("dt", SSM_HEADS)
        b, c = activation("ssm_b", *groups), activation("ssm_c", *groups)
        in_proj = projection(
            "in_proj", source=source, outputs=(z, x, b, c, dt), suffixes=("_z", "_x", "_b", "_c", "_dt"), bias=self.in_bias
        )
        conv = convolution((x, b, c), bias=self.conv_bias)
        y = activation("y", *heads)
        scan = Operator(
            "scan",
            OperatorKind.SCAN,
            inputs=(*conv.outputs, dt),
            outputs=(y,),
            weights=tuple(Weight(name, (SSM_HEADS,)) for name in ("a_log", "d", "dt_bias")),
            saved=tuple(tensor.name for tensor in (*conv.outputs, dt)),
            chunk=self.chunk,
        )
        gate = self._gate(y, z)
        return in_proj, conv, scan, gate, out_projection(gate.outputs[0], self.out_bias)

    def _gate(self, y: Tensor, z: Tensor) -> Operator:
        if self.output_norm is OutputNorm.GATE_ONLY:
            return activation_operator("ssm_gate", self.function, inputs=(z, y), target=Tensor("y_gated", y.dims))
        plain = norm("ssm_norm", NormKind.RMS, source=y, target="y_gated", over=(SSM_HEADS, SSM_HEAD_DIM))
        gating = activation_operator("gate", self.function, inputs=(z, y), target=y)
        return Operator(
            "ssm_norm",
            OperatorKind.NORM,
            inputs=(y, z),
            outputs=plain.outputs,
            weights=plain.weights,
            saved=(y.name, z.name),
            flops_per_element=plain.flops_per_element + gating.flops_per_element,
        )


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba-1 mixer as in Jamba: time step, B and C come from the convolved input and are normed."""

    function: str = "silu"
    proj_bias: Bias = Bias.NONE
    conv_bias: Bias = Bias.ADDED

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "mamba"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        x, z = activation("ssm_x", SSM_INNER), activation("z", SSM_INNER)
        in_proj = projection("in_proj", source=source, outputs=(x, z), suffixes=("_x", "_z"), bias=self.proj_bias)
        conv = convolution((x,), bias=self.conv_bias)
        convolved = conv.outputs[0]
        dt, b, c = activation("dt_low", DT_RANK), activation("ssm_b", SSM_STATE), activation("ssm_c", SSM_STATE)
        x_proj = projection("x_proj", source=convolved, outputs=(dt, b, c), suffixes=("_dt", "_b", "_c"), bias=Bias.NONE)
        norms = [
            norm(f"{name}_norm", NormKind.RMS, source=tensor, target=f"{tensor.name}_normed", over=tensor.dims[-1:])
            for name, tensor in (("dt", dt), ("b", b), ("c", c))
        ]
        dt_normed, b_normed, c_normed = (step.outputs[0] for step in norms)
        step_size = activation("dt", SSM_INNER)
        dt_proj = projection("dt_proj", source=dt_normed, outputs=(step_size,), suffixes=("_step",), bias=Bias.ADDED)
        y = activation("y", SSM_INNER)
        inputs = (convolved, b_normed, c_normed, step_size)
        scan = Operator(
            "scan",
            OperatorKind.SCAN,
            inputs=inputs,
            outputs=(y,),
            weights=(Weight("a_log", (SSM_INNER, SSM_STATE)), Weight("d", (SSM_INNER,))),
            saved=tuple(tensor.name for tensor in inputs),
        )
        gate = activation_operator("ssm_gate", self.function, inputs=(z, y), target=activation("y_gated", SSM_INNER))
        return (in_proj, conv, x_proj, *norms, dt_proj, scan, gate, out_projection(gate.outputs[0], self.proj_bias))


def convolution(inputs: tuple[Tensor, ...], *, bias: Bias) -> Operator:
    """Causal depthwise convolution over the sequence and its activation function, one kernel."""
    features = [tensor.dims[2:] for tensor in inputs]
    weights = [Weight(f"conv_{tensor.name}", (*dims, CONV_KERNEL)) for tensor, dims in zip(inputs, features, strict=True)]
    if bias is Bias.ADDED:
        weights += [Weight(f"conv_bias_{tensor.name}", dims) for tensor, dims in zip(inputs, features, strict=True)]
    return Operator(
        "conv",
        OperatorKind.CONVOLUTION,
        inputs=inputs,
        outputs=tuple(Tensor(f"{tensor.name}_conv", tensor.dims) for tensor in inputs),
        weights=tuple(weights),
        saved=tuple(tensor.name for tensor in inputs),
    )


def out_projection(source: Tensor, bias: Bias) -> Operator:
    """From a mixer's heads to the residual stream."""
    out = activation("mamba_out", HIDDEN)
    return projection("out_proj", source=source, outputs=(out,), suffixes=("_out",), bias=bias)
