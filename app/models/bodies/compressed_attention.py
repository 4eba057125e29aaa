"""DeepSeek-V4's attention: one key head that is the value too, a window, and a cache of which many tokens share an entry.

An entry of ``rate`` tokens of width ``head_dim`` is counted as an entry of each token, ``rate`` times narrower: the same
products and as many numbers in the cache. Keys and values count apart though they are one tensor, and an indexed layer sees all
entries, not the chosen ones alone: both are upper bounds. Between pipeline stages one stream is sent, of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.app.models.architecture import Bias, Body, NormKind, activation, norm, projection, rope
from meshwright.app.models.bodies.attention import attention_kernel
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, HIDDEN, INDEX_DIM, INDEX_HEADS, KV_HEADS, Q_RANK
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight

OUT_RANK = "out_rank"
"""Width that each group of heads is projected to."""
OUT_PART = "out_part"
"""A head's share of what all groups are projected to."""
STREAMS = "streams"
"""Parallel residual streams (hyper-connections)."""
MIXES = "stream_mixes"
"""Weights that mix the streams before and after a branch: one a stream for each, and one for each pair."""
SCALES = "stream_scales"
"""Scales of these weights: before, after, between."""
HEAD_SCALES = "stream_head_scales"

# A weight for each number of each stream, and the sum.
_MIX_FLOPS = 2.0
# A softmax over the tokens of an entry and their weighted sum.
_COMPRESS_FLOPS = 7.0
# A product and a sum for each number of an index head, a ReLU and a weighted sum over heads.
_INDEX_FLOPS = 4.0


@dataclass(frozen=True, slots=True)
class Compressor:
    """Entries of ``rate`` tokens; overlapping ones are made of twice the width. ``indexed``: a few heads choose among them."""

    rate: int
    overlaps: bool
    indexed: bool

    @property
    def narrow(self) -> str:
        """Dim of a token's share of an entry."""
        return f"entry_{self.rate}"

    @property
    def wide(self) -> str:
        """Dim of what an entry is made of, and of the gates of that."""
        return f"entry_{self.rate}_in"

    @property
    def tokens(self) -> str:
        """Dim of the tokens of an entry, each with a learned bias."""
        return f"entry_{self.rate}_tokens"


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Queries through a latent; keys of a window; entries of a compressor where there is one; output in groups of heads."""

    window: int
    compressor: Compressor | None = None

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with other entries."""
        return "window" if self.compressor is None else f"compressed{self.compressor.rate}"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        latent, query, key = (
            activation("q_latent", Q_RANK),
            activation("q", HEADS, HEAD_DIM),
            activation("kv", KV_HEADS, HEAD_DIM),
        )
        steps = [
            projection("q_a_proj", source=source, outputs=(latent,), suffixes=("q_a",), bias=Bias.NONE),
            norm("q_a_norm", NormKind.RMS, source=latent, target="q_latent_normed", over=(Q_RANK,)),
        ]
        q_latent = steps[-1].outputs[0]
        steps += [
            projection("q_b_proj", source=q_latent, outputs=(query,), suffixes=("q_b",), bias=Bias.NONE),
            norm("q_b_norm", NormKind.RMS_FIXED, source=query, target="q_normed", over=(HEAD_DIM,)),
            projection("kv_proj", source=source, outputs=(key,), suffixes=("kv",), bias=Bias.NONE),
            norm("kv_norm", NormKind.RMS, source=key, target="kv_normed", over=(HEAD_DIM,)),
        ]
        value = steps[-1].outputs[0]
        share = dims[KV_HEADS] / dims[HEADS]
        steps.append(rope("rope", query=Tensor("q_normed", query.dims), key=value, key_heads_per_query_head=share))
        turned, key = steps[-1].outputs
        context = activation("context", HEADS, HEAD_DIM)
        causal, sinks = AttentionMask.CAUSAL, (Weight("sinks", (HEADS,)),)
        steps.append(attention_kernel(turned, key, value, context, mask=causal, window=self.window, weights=sinks))
        if self.compressor is not None:
            steps += self._over_entries(source, q_latent, turned, self.compressor)
            joined = activation("context_joined", HEADS, HEAD_DIM)
            inputs = (context, steps[-1].outputs[0])
            steps.append(Operator("join", OperatorKind.ELEMENTWISE, inputs=inputs, outputs=(joined,), flops_per_element=2.0))
            context = joined
        return (*steps, *self._out(context))

    def _over_entries(self, source: Tensor, q_latent: Tensor, query: Tensor, compressor: Compressor) -> list[Operator]:
        entry = activation("entry", KV_HEADS, compressor.narrow)
        made = _compressed("entry", source, entry, compressor.wide, compressor.tokens, HEAD_DIM)
        narrow, context = (
            activation("q_of_entries", HEADS, compressor.narrow),
            activation("context_of_entries", HEADS, compressor.narrow),
        )
        chosen = _indexer(source, q_latent, compressor) if compressor.indexed else []
        part = Operator("q_part", OperatorKind.ELEMENTWISE, inputs=(query,), outputs=(narrow,))
        causal = AttentionMask.CAUSAL
        kernel = attention_kernel(narrow, entry, entry, context, mask=causal, window=None, name="attention_of_entries")
        return [*made, *chosen, part, replace(kernel, saved=(narrow.name, entry.name, context.name))]

    def _out(self, context: Tensor) -> list[Operator]:
        low, spread, out = (
            activation("out_low", OUT_RANK),
            activation("out_spread", HEADS, OUT_PART),
            activation("attn_out", HIDDEN),
        )
        return [
            projection("o_a_proj", source=context, outputs=(low,), suffixes=("o_a",), bias=Bias.NONE),
            Operator("o_groups", OperatorKind.ELEMENTWISE, inputs=(low,), outputs=(spread,)),
            projection("o_b_proj", source=spread, outputs=(out,), suffixes=("o_b",), bias=Bias.NONE),
        ]


def _compressed(name: str, source: Tensor, target: Tensor, wide: str, tokens: str, width: str) -> list[Operator]:
    """Projections to what entries are made of and to its gates; the entries, weighed, normed, with a bias a token."""
    made_of, gates = activation(f"{name}_in", wide), activation(f"{name}_gates", wide)
    entry = projection(f"{name}_proj", source=source, outputs=(made_of, gates), suffixes=("_kv", "_gate"), bias=Bias.NONE)
    weighed = Operator(
        f"{name}_norm",
        OperatorKind.NORM,
        inputs=(made_of, gates),
        outputs=(target,),
        weights=(Weight("weight", (width,)), Weight("position_bias", (tokens, wide))),
        saved=(made_of.name, gates.name),
        flops_per_element=_COMPRESS_FLOPS,
    )
    return [entry, weighed]


def _indexer(source: Tensor, q_latent: Tensor, compressor: Compressor) -> list[Operator]:
    """Index queries from the query latent, index entries and weights of heads from the stream; keeps nothing."""
    query, weights = activation("index_q", INDEX_HEADS, INDEX_DIM), activation("index_weights", INDEX_HEADS)
    entry = activation("index_entry", INDEX_DIM)
    steps = [
        projection("index_q_proj", source=q_latent, outputs=(query,), suffixes=("_index_q",), bias=Bias.NONE),
        *_compressed("index_entry", source, entry, f"index_{compressor.wide}", compressor.tokens, INDEX_DIM),
        projection("index_weights_proj", source=source, outputs=(weights,), suffixes=("_index",), bias=Bias.NONE),
        Operator(
            "index",
            OperatorKind.ELEMENTWISE,
            inputs=(query, entry, weights),
            outputs=(activation("index_scores", INDEX_HEADS),),
            flops_per_element=_INDEX_FLOPS,
        ),
    ]
    return [replace(step, saved=()) for step in steps]


@dataclass(frozen=True, slots=True)
class HyperConnected:
    """A branch behind hyper-connections: the streams are mixed into its normed input, and its output into the streams.

    Without a body, the mix of all streams behind the last layer.
    """

    name: str
    body: Body | None

    @property
    def tag(self) -> str:
        """Word of the branch's own body."""
        return "streams" if self.body is None else self.body.tag

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the stream to the body's output."""
        streams, mixed = activation(f"{self.name}_streams", STREAMS, HIDDEN), activation(f"{self.name}_mixed", HIDDEN)
        last = self.body is None
        mixes = activation(f"{self.name}_mixes", f"{MIXES}_head" if last else MIXES)
        scale = Weight("scale", (HEAD_SCALES if last else SCALES,))
        steps = [
            Operator(f"{self.name}_widen", OperatorKind.ELEMENTWISE, inputs=(source,), outputs=(streams,)),
            replace(
                norm(f"{self.name}_stream_norm", NormKind.RMS_FIXED, source=streams, target=f"{self.name}_streams_normed"),
                weights=(scale, Weight("base", mixes.dims[2:])),
            ),
        ]
        steps.append(
            projection(
                f"{self.name}_mix_proj", source=steps[-1].outputs[0], outputs=(mixes,), suffixes=("_mix",), bias=Bias.NONE
            )
        )
        inputs = (streams, mixes)
        saved = tuple(tensor.name for tensor in inputs)
        steps.append(
            Operator(f"{self.name}_mix", OperatorKind.ELEMENTWISE, inputs, (mixed,), saved=saved, flops_per_element=_MIX_FLOPS)
        )
        if self.body is None:
            return tuple(steps)
        steps.append(norm(f"{self.name}_norm", NormKind.RMS, source=mixed, target=f"{self.name}_normed"))
        return (*steps, *self.body.operators(steps[-1].outputs[0], dims))
