"""Mixers with a state for each head beside Mamba's and the gated delta net: KDA, lightning attention, the RG-LRU.

Each is said by the operators that are there: a scan in chunks whose states have the mixer's size, so parameters and state bytes
are exact and times are those of a gated delta rule (KDA), of Mamba-2's dual form (lightning) and of Mamba-1's scan (RG-LRU).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.app.models.architecture import Bias, NormKind, activation, norm, projection
from meshwright.app.models.bodies.mixers import CHUNK, convolution, correction_flops, out_projection
from meshwright.app.models.bodies.mlp import activation_operator
from meshwright.costmodels.model.dims import SSM_GROUPS, SSM_HEAD_DIM, SSM_HEADS, SSM_INNER, SSM_STATE
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

KDA_RANK = "gate_rank"
"""Dim that forget and output gates of a delta attention go through where they are of low rank."""

# Softplus of a sum, its product with the rate of a head, exponential.
_DECAY_FLOPS = 6.0


@dataclass(frozen=True, slots=True)
class DeltaAttention:
    """Kimi delta attention: a gated delta rule that forgets each number of a key at a rate of its own (arXiv 2510.26692).

    Heads are ``ssm_heads`` of ``ssm_head_dim`` values and ``ssm_state`` keys; ``ssm_groups`` is as many. ``low_rank`` says that
    both gates go through ``gate_rank``.
    """

    low_rank: bool = True

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "linear"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        value_dims, key_dims = (SSM_HEADS, SSM_HEAD_DIM), (SSM_GROUPS, SSM_STATE)
        query, key = activation("linear_q", *key_dims), activation("linear_k", *key_dims)
        value, beta = activation("linear_v", *value_dims), activation("beta", SSM_HEADS)
        z, decay = activation("z", *value_dims), activation("decay", SSM_HEADS, SSM_STATE)
        in_proj = projection(
            "in_proj", source=source, outputs=(value, query, key, beta), suffixes=("_v", "_q", "_k", "_beta"), bias=Bias.NONE
        )
        conv = convolution((value, query, key), bias=Bias.NONE)
        v, q, k = conv.outputs
        written = Tensor("v_written", v.dims)
        write = Operator(
            "write", OperatorKind.ELEMENTWISE, (v, beta), (written,), saved=(v.name, beta.name), flops_per_element=1.0
        )
        y = activation("y", *value_dims)
        scan = Operator(
            "delta_rule",
            OperatorKind.SCAN,
            inputs=(written, k, q, decay),
            outputs=(y,),
            weights=(Weight("a_log", (SSM_HEADS,)), Weight("dt_bias", (SSM_HEADS, SSM_STATE))),
            saved=(written.name, k.name, q.name, decay.name),
            flops_per_element=correction_flops(dims) + _DECAY_FLOPS,
            chunk=CHUNK,
        )
        gates = [*self._gate("forget", source, decay), *self._gate("gate", source, z)]
        joined = _gated_norm(y, z, "sigmoid", over=(SSM_HEAD_DIM,))
        return (in_proj, *gates, conv, write, scan, joined, out_projection(joined.outputs[0], Bias.NONE))

    def _gate(self, name: str, source: Tensor, target: Tensor) -> list[Operator]:
        if not self.low_rank:
            return [projection(f"{name}_proj", source=source, outputs=(target,), suffixes=(f"_{name}",), bias=Bias.NONE)]
        low = activation(f"{name}_low", KDA_RANK)
        return [
            projection(f"{name}_a_proj", source=source, outputs=(low,), suffixes=(f"_{name}_a",), bias=Bias.NONE),
            projection(f"{name}_b_proj", source=low, outputs=(target,), suffixes=(f"_{name}_b",), bias=Bias.NONE),
        ]


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed rate of forgetting for each head, normed and gated (MiniMax-01, arXiv 2501.08313).

    Heads are ``ssm_heads`` of ``ssm_head_dim`` values and ``ssm_state`` keys, all of one width; ``ssm_groups`` is as many.
    """

    chunk: int
    function: str

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "linear"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        value_dims, key_dims = (SSM_HEADS, SSM_HEAD_DIM), (SSM_GROUPS, SSM_STATE)
        value, query, key = (
            activation("linear_v", *value_dims),
            activation("linear_q", *key_dims),
            activation("linear_k", *key_dims),
        )
        z, y = activation("z", *value_dims), activation("y", *value_dims)
        in_proj = projection(
            "in_proj", source=source, outputs=(value, query, key, z), suffixes=("_v", "_q", "_k", "_gate"), bias=Bias.NONE
        )
        acts = [
            activation_operator(f"{each.name}_act", self.function, inputs=(each,), target=Tensor(f"{each.name}_on", each.dims))
            for each in (value, key, query)
        ]
        v, k, q = (step.outputs[0] for step in acts)
        # A scan takes a step of each head, which is a constant here: the gate stands in its place, and is not kept twice.
        scan = Operator(
            "scan",
            OperatorKind.SCAN,
            inputs=(v, k, q, z),
            outputs=(y,),
            saved=(v.name, k.name, q.name),
            chunk=self.chunk,
        )
        joined = _gated_norm(y, z, "sigmoid", over=(SSM_HEADS, SSM_HEAD_DIM))
        return (in_proj, *acts, scan, joined, out_projection(joined.outputs[0], Bias.NONE))


def _gated_norm(y: Tensor, z: Tensor, function: str, *, over: tuple[str, ...]) -> Operator:
    """RMS norm of a mixer's output, times its gate."""
    plain = norm("linear_norm", NormKind.RMS, source=y, target="y_gated", over=over)
    gating = activation_operator("gate", function, inputs=(z, y), target=y)
    return replace(
        plain,
        inputs=(y, z),
        saved=(y.name, z.name),
        flops_per_element=plain.flops_per_element + gating.flops_per_element,
    )


LRU_BLOCK = "lru_block"
"""Channels of a block of the RG-LRU, which its gates mix."""
LRU_STATE = "lru_state"
"""Numbers that a channel of the RG-LRU keeps: one."""

# Two sigmoids, the logarithm of the rate, its exponential, the square root of what is left, two products.
_LRU_GATE_FLOPS = 16.0


@dataclass(frozen=True, slots=True)
class GatedRecurrence:
    """RecurrentGemma's recurrent block (Griffin, arXiv 2402.19427, sections 2.3 and 2.4).

    Two branches of ``ssm_inner`` channels, a convolution and an RG-LRU in one of them, and their product. Gates mix the
    channels of a block of ``lru_block``.
    """

    function: str

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with attention."""
        return "recurrent"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        x, z = activation("ssm_x", SSM_INNER), activation("z", SSM_INNER)
        in_proj = projection("in_proj", source=source, outputs=(x, z), suffixes=("_x", "_y"), bias=Bias.ADDED)
        conv = convolution((x,), bias=Bias.ADDED)
        convolved = conv.outputs[0]
        # A block's gates read its channels alone: as many weights and products as of all channels to one block.
        narrow = activation("input_gate", LRU_BLOCK), activation("recurrent_gate", LRU_BLOCK)
        gates = projection("gates_proj", source=convolved, outputs=narrow, suffixes=("_input", "_recurrent"), bias=Bias.NONE)
        kept, rate, one = activation("lru_x", SSM_INNER), activation("lru_rate", SSM_INNER), activation("lru_one", LRU_STATE)
        gating = Operator(
            "lru_gates",
            OperatorKind.ELEMENTWISE,
            inputs=(convolved, *narrow),
            outputs=(kept, rate, one),
            saved=(convolved.name, *(each.name for each in narrow)),
            flops_per_element=_LRU_GATE_FLOPS,
        )
        y = activation("y", SSM_INNER)
        scan = Operator(
            "scan",
            OperatorKind.SCAN,
            inputs=(kept, one, one, rate),
            outputs=(y,),
            weights=tuple(Weight(name, (SSM_INNER,)) for name in ("rate", "input_gate_bias", "recurrent_gate_bias")),
            saved=(kept.name, rate.name),
        )
        gate = activation_operator("ssm_gate", self.function, inputs=(z, y), target=activation("y_gated", SSM_INNER))
        return in_proj, conv, gates, gating, scan, gate, out_projection(gate.outputs[0], Bias.ADDED)
