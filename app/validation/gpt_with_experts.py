"""GPT whose feed-forward networks are experts, as Megatron-LM builds it without a gate: layer norms, learned positions, biases
in attention alone. Transformers has no such family."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.app.importers.architecture import Architecture, Branch, Embedding, Head, Layer, Tie
from meshwright.app.importers.assembly import assemble
from meshwright.app.importers.bodies.attention import Attention, Position
from meshwright.app.importers.bodies.experts import Experts
from meshwright.app.importers.bodies.mlp import Gate
from meshwright.app.importers.parts import Bias, NormKind
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.model.dims import (
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    POSITIONS,
    TOP_K,
    VOCAB,
)
from meshwright.solver.problem.graph import ModelGraph


def gpt_with_experts(name: str, figures: Mapping[str, int]) -> ModelGraph:
    """The graph of these figures, by the names of config.json and of a table's columns; raises NotPredictedError for heads that
    do not divide."""
    hidden, heads, kv_heads = figures["hidden"], figures["num_attention_heads"], figures["num_key_value_heads"]
    if hidden % heads or heads % kv_heads:
        raise NotPredictedError(f"{heads} heads and {kv_heads} key/value heads in {hidden}")
    dims = {
        HIDDEN: hidden,
        HEADS: heads,
        KV_HEADS: kv_heads,
        HEAD_DIM: hidden // heads,
        FFN: figures["ffn_hidden"],
        VOCAB: figures["vocab"],
        POSITIONS: figures["seq_len"],
        EXPERTS: figures["num_experts"],
        TOP_K: figures["num_experts_per_tok"],
        EXPERT_FFN: figures["ffn_hidden"],
    }
    attention = Branch("attn", Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED), NormKind.LAYER)
    layer = Layer((attention, Branch("mlp", Experts("gelu", Gate.PLAIN), NormKind.LAYER)))
    head, embedding = Head(Tie.TIED, NormKind.LAYER), Embedding(position_dim=POSITIONS)
    return assemble(name, Architecture(dims, (layer,) * figures["n_layers"], head, embedding))
