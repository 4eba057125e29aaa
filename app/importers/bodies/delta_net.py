"""Gated delta networks (Yang et al. 2024), the linear attention of Qwen3-Next and Qwen3.5.

Each value head has a state, from which a token's key first takes back what it held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.app.importers.bodies.mamba import convolution, out_projection
from meshwright.app.importers.bodies.mlp import activation_operator
from meshwright.app.importers.parts import Bias, NormKind, activation, norm, projection
from meshwright.costmodels.model.dims import SSM_GROUPS, SSM_HEAD_DIM, SSM_HEADS, SSM_STATE
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

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
            flops_per_element=_correction_flops(dims),
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


def _correction_flops(dims: Mapping[str, int]) -> float:
    """FLOPs for each element of the values beside those of a chunked scan: K K^T of a chunk, the product of its inverted
    triangle with keys and with values, and what the state gives back for the keys (the paper's section 3.3)."""
    width, state = dims[SSM_HEAD_DIM], dims[SSM_STATE]
    return (4.0 * CHUNK * state + 2.0 * CHUNK * width + 2.0 * state * width) / width
