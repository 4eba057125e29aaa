"""State-space mixers: Mamba-2 (state-space duality, heads) and Mamba-1 (a state for every channel)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.app.models.architecture import Bias, NormKind, activation, norm, projection
from meshwright.app.models.bodies.mlp import activation_operator
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


# Gated delta networks (Yang et al. 2024), the linear attention of Qwen3-Next and Qwen3.5.
#
# Each value head has a state, from which a token's key first takes back what it held.

GATES = "delta_gates"
"""Dim of the two numbers that each head computes for a token: how much it forgets, and how much it writes."""

CHUNK = 64
"""Tokens of a chunk in the kernels of flash-linear-attention and in transformers' own path."""


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Projections to queries, keys, values, gates; convolution; chunked delta rule; gated norm of each head; projection.

    Value heads are ``ssm_heads`` of ``ssm_head_dim``; query and key heads ``ssm_groups`` of ``ssm_state``.
    """

    function: str = "silu"

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "linear"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        heads, groups = (SSM_HEADS, SSM_HEAD_DIM), (SSM_GROUPS, SSM_STATE)
        query, key = activation("linear_q", *groups), activation("linear_k", *groups)
        value, z, gates = activation("linear_v", *heads), activation("z", *heads), activation("gates", SSM_HEADS, GATES)
        in_proj = projection(
            "in_proj",
            source=source,
            outputs=(value, query, key, z, gates),
            suffixes=("_v", "_q", "_k", "_z", "_ba"),
            bias=Bias.NONE,
        )
        conv = convolution((value, query, key), bias=Bias.NONE)
        v, q, k = conv.outputs
        y = activation("y", *heads)
        scan = Operator(
            "delta_rule",
            OperatorKind.SCAN,
            inputs=(v, k, q, gates),
            outputs=(y,),
            weights=tuple(Weight(name, (SSM_HEADS,)) for name in ("a_log", "dt_bias")),
            saved=(v.name, k.name, q.name, gates.name),
            flops_per_element=correction_flops(dims),
            chunk=CHUNK,
        )
        gate = self._gate(y, z)
        return in_proj, conv, scan, gate, out_projection(gate.outputs[0], Bias.NONE)

    def _gate(self, y: Tensor, z: Tensor) -> Operator:
        plain = norm("linear_norm", NormKind.RMS, source=y, target="y_gated", over=(SSM_HEAD_DIM,))
        gating = activation_operator("gate", self.function, inputs=(z, y), target=y)
        return replace(
            plain,
            inputs=(y, z),
            saved=(y.name, z.name),
            flops_per_element=plain.flops_per_element + gating.flops_per_element,
        )


def correction_flops(dims: Mapping[str, int]) -> float:
    """FLOPs for each element of the values beside those of a chunked scan: K K^T of a chunk, the product of its inverted
    triangle with keys and with values, and what the state gives back for the keys (the paper's section 3.3)."""
    width, state = dims[SSM_HEAD_DIM], dims[SSM_STATE]
    return (4.0 * CHUNK * state + 2.0 * CHUNK * width + 2.0 * state * width) / width


# Gated short convolutions (LFM2): a depthwise convolution over a few tokens, gated before and after.


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
