"""Zamba2's hybrid layers: a transformer block whose weights several layers share, and a Mamba-2 mixer after it.

The shared block reads the stream beside the model's embedding, has no residual sums of its own, and meets adapters of each
layer; its output goes into the mixer's norm, not into the stream (Glorioso et al. 2024, arXiv 2411.15242, figure 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from meshwright.app.models.architecture import Bias, NormKind, activation, norm, projection, residual_add, rope
from meshwright.app.models.bodies.attention import Position, attention_kernel
from meshwright.app.models.bodies.mixers import Mamba2
from meshwright.app.models.bodies.mlp import activation_operator
from meshwright.costmodels.model.dims import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS
from meshwright.costmodels.model.operators import AttentionMask, Operator, Tensor

EMBEDDED = "embedded"
"""Tensor of the embedding block that hybrid layers read besides the stream."""

WIDE = "wide"
"""Dim of the stream and the embedding side by side."""

SHARED_HIDDEN = "shared_hidden"
"""Dim of the shared block's output: as wide as the stream, into which each layer projects it."""

ADAPTER_RANK = "adapter_rank"


@dataclass(frozen=True, slots=True)
class SharedTransformer:
    """A use of shared block ``number``, and the layer's own projection, norm and mixer.

    owner   block of the model graph that owns the shared weights; None: this one
    """

    mixer: Mamba2
    function: str
    number: int
    position: Position = Position.ELSEWHERE
    bias: Bias = Bias.NONE
    attention_adapter: Bias = Bias.NONE
    owner: str | None = None

    @property
    def tag(self) -> str:
        """Word that tells first uses of a shared block from later ones, and both from mixers alone."""
        return f"hybrid{self.number}" if self.owner is None else f"reuse{self.number}"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the stream to the mixer's output, which is the body's."""
        wide = activation("wide_normed", WIDE)
        wide_norm = replace(
            norm("wide_norm", NormKind.RMS, source=wide, target=wide.name, over=(WIDE,)),
            inputs=(source, activation(EMBEDDED, HIDDEN)),
            outputs=(wide,),
            saved=(source.name, EMBEDDED),
        )
        shared = [*self._attention(wide, dims), *self._feed_forward(activation("attn_out", HIDDEN))]
        out, joined = activation("shared_out", HIDDEN), "mixer_in"
        own = [
            projection("shared_proj", source=shared[-1].outputs[0], outputs=(out,), suffixes=("_shared",), bias=Bias.NONE),
            residual_add("shared_add", stream=source, branch=out, target=joined),
        ]
        mixer_norm = norm("mamba_norm", NormKind.RMS, source=own[-1].outputs[0], target="mamba_normed")
        mixer = self.mixer.operators(mixer_norm.outputs[0], dims)
        return (*self._shared((wide_norm, *shared)), *own, mixer_norm, *mixer)

    def _attention(self, wide: Tensor, dims: Mapping[str, int]) -> list[Operator]:
        query = activation("q", HEADS, HEAD_DIM)
        key, value = (activation(name, KV_HEADS, HEAD_DIM) for name in "kv")
        steps = [
            projection("qkv_proj", source=wide, outputs=(query, key, value), suffixes=("q", "k", "v"), bias=Bias.NONE),
        ]
        if self.attention_adapter is Bias.ADDED:
            adapted = (query, key, value)
            steps += _adapters(wide, adapted, ("q", "k", "v"))
            query, key, value = (Tensor(f"{tensor.name}_adapted", tensor.dims) for tensor in adapted)
        if self.position is Position.ROTARY:
            steps.append(rope("rope", query=query, key=key, key_heads_per_query_head=dims[KV_HEADS] / dims[HEADS]))
            query, key = steps[-1].outputs
        context, out = activation("context", HEADS, HEAD_DIM), activation("attn_out", HIDDEN)
        steps.append(attention_kernel(query, key, value, context, mask=AttentionMask.CAUSAL, window=None))
        steps.append(projection("o_proj", source=context, outputs=(out,), suffixes=("o",), bias=Bias.NONE))
        return steps

    def _feed_forward(self, source: Tensor) -> list[Operator]:
        entry = norm("mlp_norm", NormKind.RMS, source=source, target="mlp_normed")
        normed, halves = entry.outputs[0], (activation("gate", FFN), activation("up", FFN))
        product = projection("gate_up_proj", source=normed, outputs=halves, suffixes=("_gate", "_up"), bias=self.bias)
        adapters = _adapters(normed, halves, ("_gate", "_up"), one_latent=True)
        adapted = tuple(Tensor(f"{tensor.name}_adapted", tensor.dims) for tensor in halves)
        act, out = activation("act_out", FFN), activation("mlp_out", SHARED_HIDDEN)
        down = projection("down_proj", source=act, outputs=(out,), suffixes=("_down",), bias=self.bias)
        return [entry, product, *adapters, activation_operator("act", self.function, inputs=adapted, target=act), down]

    def _shared(self, steps: Iterable[Operator]) -> Iterable[Operator]:
        """The steps with the weights of the block that owns them; adapters are the layer's own."""
        for step in steps:
            if self.owner is None or "adapter" in step.name:
                yield step
                continue
            place = f"{self.owner}/{step.name}"
            yield replace(step, weights=tuple(replace(w, tied_to=f"{place}/{w.name}") for w in step.weights))


def _adapters(
    source: Tensor, outputs: tuple[Tensor, ...], suffixes: tuple[str, ...], *, one_latent: bool = False
) -> list[Operator]:
    """Low-rank adapters beside a projection, and their sums with its outputs; one for all outputs or one for each."""
    groups = [(outputs, suffixes)] if one_latent else [((t,), (s,)) for t, s in zip(outputs, suffixes, strict=True)]
    steps: list[Operator] = []
    for tensors, names in groups:
        stem = f"{tensors[0].name}_adapter"
        latent = activation(f"{stem}_latent", ADAPTER_RANK)
        low = tuple(Tensor(f"{tensor.name}_low", tensor.dims) for tensor in tensors)
        steps += [
            projection(f"{stem}_down", source=source, outputs=(latent,), suffixes=("_down",), bias=Bias.NONE),
            projection(f"{stem}_up", source=latent, outputs=low, suffixes=names, bias=Bias.NONE),
        ]
        steps += [
            residual_add(f"{tensor.name}_adapter_add", stream=tensor, branch=part, target=f"{tensor.name}_adapted")
            for tensor, part in zip(tensors, low, strict=True)
        ]
    return steps
