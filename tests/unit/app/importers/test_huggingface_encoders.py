"""BERT, ViT and T5: the graph of models with encoders."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import AttentionMask, forward_flops
from meshwright.solver.problem.graph import BlockRun, ModelGraph


def graph(document: dict[str, Any]) -> ModelGraph:
    return read_huggingface_config(document, name="model")


def test_bert_norms_follow_the_adds_and_attention_sees_everything() -> None:
    layer = graph({"model_type": "bert"}).block("layer")
    names = [operator.name for operator in layer.operators]
    assert names == [
        "qkv_proj",
        "attention",
        "o_proj",
        "attn_residual",
        "attn_norm",
        "up_proj",
        "act",
        "down_proj",
        "mlp_residual",
        "mlp_norm",
    ]
    assert layer.operator("attention").mask is AttentionMask.FULL
    assert layer.output == "mlp_normed"


def test_bert_head_shares_the_token_table_behind_its_transform() -> None:
    head = graph({"model_type": "bert"}).block("head")
    assert [operator.name for operator in head.operators][:3] == ["transform", "transform_act", "transform_norm"]
    assert head.operator("lm_head").weights[0].tied_to == "embedding/embed/weight"


def test_vit_projects_patches_and_classifies_the_first_token() -> None:
    model = graph({"model_type": "vit"})
    assert model.dims["positions"] == 14 * 14 + 1
    sizes = {**model.dims, BATCH: 2, SEQ: 196}
    assert forward_flops(model.block("embedding").operator("patch_proj"), sizes) == 2 * 2 * 196 * 3 * 16**2 * 768
    assert forward_flops(model.block("head").operator("classify"), sizes) == 2 * 2 * 768 * 2


def test_t5_decoder_layers_all_depend_on_the_end_of_the_encoder() -> None:
    model = graph({"model_type": "t5"})
    assert model.chain == (
        BlockRun("embedding"),
        BlockRun("encoder_relative"),
        BlockRun("encoder_full", repeat=5),
        BlockRun("encoder_end"),
        BlockRun("decoder_embedding"),
        BlockRun("decoder_relative"),
        BlockRun("decoder_full", repeat=5),
        BlockRun("head"),
    )
    assert model.edges == ((0, 1), (1, 2), (2, 3), (3, 5), (3, 6), (4, 5), (5, 6), (6, 7))
    assert not model.is_chain


def test_t5_cross_attention_reads_the_encoder() -> None:
    layer = graph({"model_type": "t5"}).block("decoder_full")
    assert [tensor.name for tensor in layer.operator("cross_kv_proj").inputs] == ["encoded"]
    assert layer.operator("cross_attention").mask is AttentionMask.FULL
    assert layer.operator("attention").mask is AttentionMask.CAUSAL


def test_whisper_halves_frames_and_ties_its_head_to_the_decoder() -> None:
    model = graph({"model_type": "whisper"})
    sizes = {**model.dims, BATCH: 2, SEQ: 100}
    audio = model.block("embedding")
    assert forward_flops(audio.operator("conv1"), sizes) == 2 * 2 * (2 * 100) * 80 * 3 * 384
    assert forward_flops(audio.operator("conv2"), sizes) == 2 * 2 * 100 * 384 * 3 * 384
    assert model.block("head").operator("lm_head").weights[0].tied_to == "decoder_embedding/embed/weight"


def test_whisper_adds_no_bias_to_keys() -> None:
    decoder = graph({"model_type": "whisper"}).block("decoder")
    biases = {w.name for op in ("qkv_proj", "cross_q_proj", "cross_kv_proj") for w in decoder.operator(op).weights}
    assert {"bq", "bv"} <= biases
    assert "bk" not in biases


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "untied masked-language head": ({"model_type": "bert", "tie_word_embeddings": False}, "masked-language head"),
    "patch larger than the image": ({"model_type": "vit", "patch_size": 300}, "larger than the image"),
    "labels of a list": ({"model_type": "vit", "id2label": ["cat"]}, "'id2label' has the wrong type"),
    "unknown activation": ({"model_type": "t5", "feed_forward_proj": "gated-mystery"}, "given: 'mystery'"),
    "unequal stacks": ({"model_type": "whisper", "decoder_ffn_dim": 100}, "different widths"),
    "endless decoder": ({"model_type": "t5", "num_decoder_layers": 10**8}, "'num_decoder_layers' is out of range"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        graph(document)
    assert reason in str(refusal.value)
