"""From a run's shape columns to a model graph, by way of the config.json that a model of that shape would have."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from meshwright.app.catalog import model
from meshwright.app.importers.huggingface import read_huggingface_config
from meshwright.app.validation.rows import Run
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.solver.problem.graph import ModelGraph

GATED, PLAIN, MAMBA2 = "dense-gated", "dense-gelu", "mamba2"

_MAMBA_HEAD_DIM = 64
"""Head dimension of Mamba-2's published models (Dao and Gu 2024); the survey gives none."""


_PUBLISHED = {"GPT OSS 120B": "gpt-oss-120b", "Qwen3_30B_a3B": "qwen3-30b-a3b"}
"""Published models that rows name without their shape, in the model catalogue."""


def model_graph(run: Run) -> ModelGraph:
    """The model of a run, before its implementation; raises NotPredictedError when the row does not describe one."""
    if run.hidden is None and run.model in _PUBLISHED:
        return model(_PUBLISHED[run.model])
    return _graph(
        run.arch,
        _needed(run.n_layers, "n_layers"),
        _needed(run.hidden, "hidden"),
        run.heads,
        run.kv_heads,
        _needed(run.ffn, "ffn_hidden"),
        _vocab(run),
        _needed(run.seq_len, "seq_len"),
        run.model,
    )


def _vocab(run: Run) -> int:
    source = run.reading
    vocab = run.vocab or (source.mamba_vocab if _kind(run.arch) == MAMBA2 else source.vocab)
    if vocab is None:
        raise NotPredictedError("the row and its source give no vocabulary")
    return vocab


def _kind(arch: str) -> str:
    """First word of an architecture: GATED, PLAIN, MAMBA2 or another."""
    return arch.split(maxsplit=1)[0] if arch else ""


def _needed(value: int | None, column: str) -> int:
    if value is None:
        raise NotPredictedError(f"the row gives no {column}")
    return value


@cache
def _graph(
    arch: str,
    n_layers: int,
    hidden: int,
    heads: int | None,
    kv_heads: int | None,
    ffn: int,
    vocab: int,
    seq_len: int,
    name: str,
) -> ModelGraph:
    kind = _kind(arch)
    config: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": n_layers, "vocab_size": vocab}
    if kind == MAMBA2:
        return read_huggingface_config(config | _mamba_fields(arch, hidden, ffn, n_layers), name=name)
    if kind not in (GATED, PLAIN):
        raise NotPredictedError(f"no training cost model for architecture {arch or 'not stated'}")
    if heads is None:
        raise NotPredictedError("the row gives no heads")
    config |= {"num_attention_heads": heads}
    if kind == GATED:
        config |= {"model_type": "llama", "num_key_value_heads": kv_heads or heads, "intermediate_size": ffn}
    elif kv_heads not in (None, heads):
        raise NotPredictedError("grouped key/value heads beside an ungated feed-forward network")
    else:
        config |= {"model_type": "gpt2", "n_inner": ffn, "max_position_embeddings": seq_len}
    return read_huggingface_config(config, name=name)


def _mamba_fields(arch: str, hidden: int, ffn: int, n_layers: int) -> dict[str, Any]:
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
