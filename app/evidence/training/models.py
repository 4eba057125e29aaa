"""From a run's model to a graph: the mapping's model, the catalogue's of the row's name, or one of the shape in its columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.rows import Run
from meshwright.app.models.architecture import Architecture, Bias, Branch, Embedding, Head, Layer, NormKind, Tie
from meshwright.app.models.assembly import assemble
from meshwright.app.models.bodies.attention import Attention, Position
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.bodies.mlp import Gate
from meshwright.app.models.catalog import model, model_document, model_names
from meshwright.app.models.huggingface import read_huggingface_config
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

# GPT whose feed-forward networks are experts, as Megatron-LM builds it without a gate: layer norms, learned positions, biases
# in attention alone. Transformers has no such family.


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


GATED, PLAIN, MAMBA2 = "dense-gated", "dense-gelu", "mamba2"
GATED_EXPERTS, PLAIN_EXPERTS, LATENT_EXPERTS = "moe-gated", "moe-gelu", "moe-mla"

_MAMBA_HEAD_DIM = 64
"""Head dimension of Mamba-2's published models (Dao and Gu 2024); the survey gives none."""


def model_graph(run: Run) -> ModelGraph:
    """The model of a run, before its implementation; raises NotPredictedError when the row does not describe one."""
    if run.stated_model is not None:
        return _read(run.stated_model.catalog, json.dumps(dict(run.stated_model.config), sort_keys=True), run.model)
    named = named_in_catalogue(run)
    return _shaped(run) if named is None else model(named)


def named_in_catalogue(run: Run) -> str | None:
    """The catalogue's one model whose name begins as that of the row, signs and case aside; None for rows with a shape."""
    if run.hidden is not None or not run.model or run.stated_model is not None:
        return None
    found = [name for name in model_names() if _letters(name).startswith(_letters(run.model))]
    exact = [name for name in found if _letters(name) == _letters(run.model)]
    return next(iter(exact or found), None) if len(exact or found) == 1 else None


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


@cache
def _read(catalog: str | None, config: str, name: str) -> ModelGraph:
    base: Mapping[str, Any] = {} if catalog is None else model_document(catalog)
    return read_huggingface_config({**base, **json.loads(config)}, name=name or catalog or "model")


def _shaped(run: Run) -> ModelGraph:
    sizes = {
        "n_layers": run.n_layers,
        "hidden": run.hidden,
        "ffn_hidden": run.ffn,
        "vocab": run.vocab,
        "seq_len": run.seq_len,
    }
    missing = [name for name, size in sizes.items() if size is None]
    if missing:
        raise NotPredictedError(f"the row gives no {missing[0]}")
    needed = {name: size for name, size in sizes.items() if size is not None}
    return _graph(run.arch, run.model, tuple(needed.items()), run.heads, run.kv_heads, run.n_experts, run.top_k)


@cache
def _graph(
    arch: str,
    name: str,
    sizes: tuple[tuple[str, int], ...],
    heads: int | None,
    kv_heads: int | None,
    n_experts: int | None,
    top_k: int | None,
) -> ModelGraph:
    size = dict(sizes)
    kind = arch.split(maxsplit=1)[0] if arch else ""
    config = {"hidden_size": size["hidden"], "num_hidden_layers": size["n_layers"], "vocab_size": size["vocab"]}
    if kind == MAMBA2:
        fields = _mamba_fields(arch, hidden=size["hidden"], ffn=size["ffn_hidden"], n_layers=size["n_layers"])
        return read_huggingface_config(config | fields, name=name)
    if heads is None:
        raise NotPredictedError("the row gives no heads")
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads or heads}
    if kind == GATED:
        fields = attention | {"model_type": "llama", "intermediate_size": size["ffn_hidden"]}
        return read_huggingface_config(config | fields, name=name)
    if kind == PLAIN:
        if kv_heads not in (None, heads):
            raise NotPredictedError("grouped key/value heads beside an ungated feed-forward network")
        positions = {"n_inner": size["ffn_hidden"], "max_position_embeddings": size["seq_len"]}
        return read_huggingface_config(config | {"model_type": "gpt2", "num_attention_heads": heads} | positions, name=name)
    if kind not in (GATED_EXPERTS, PLAIN_EXPERTS, LATENT_EXPERTS):
        raise NotPredictedError(f"no training cost model for architecture {arch or 'not stated'}")
    if n_experts is None or top_k is None:
        raise NotPredictedError("the row does not say how many experts there are, or how many a token has")
    experts = {"num_experts": n_experts, "num_experts_per_tok": top_k}
    if kind == PLAIN_EXPERTS:
        return gpt_with_experts(name, {**size, **attention, **experts})
    return read_huggingface_config(config | attention | experts | _expert_fields(kind, size["ffn_hidden"]), name=name)


def _expert_fields(kind: str, ffn: int) -> dict[str, Any]:
    """Fields of Mixtral, or of DeepSeek-V3 with experts in all layers and one beside them: rows give the width of experts
    alone."""
    if kind == GATED_EXPERTS:
        return {"model_type": "mixtral", "intermediate_size": ffn}
    return {"model_type": "deepseek_v3", "moe_intermediate_size": ffn, "first_k_dense_replace": 0, "topk_method": "greedy"}


def _mamba_fields(arch: str, *, hidden: int, ffn: int, n_layers: int) -> dict[str, Any]:
    """Fields of Nemotron-H with mixers alone: pure Mamba-2 has no feed-forward network, whatever size is stated for one."""
    stated = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", arch)}
    missing = sorted({"state", "ngroups", "expand", "chunk"} - set(stated))
    if missing:
        raise NotPredictedError(f"the architecture gives no {', '.join(missing)}")
    return {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M" * n_layers,
        "intermediate_size": ffn,
        "ssm_state_size": stated["state"],
        "n_groups": stated["ngroups"],
        "chunk_size": stated["chunk"],
        "mamba_head_dim": _MAMBA_HEAD_DIM,
        "mamba_num_heads": stated["expand"] * hidden // _MAMBA_HEAD_DIM,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": n_layers,
    }
