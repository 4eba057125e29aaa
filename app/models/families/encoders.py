"""Models with encoders: BERT and its kin (masked language models, embeddings), ViT (image classifier), T5 and Whisper (encoder
and decoder).
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.architecture import (
    Architecture,
    AudioEmbedding,
    Bias,
    Branch,
    ClassHead,
    Embedding,
    EncoderDecoder,
    Head,
    Layer,
    NormKind,
    NormPlace,
    PatchEmbedding,
    Tie,
    Transform,
)
from meshwright.app.models.bodies.attention import RELATIVE_POSITIONS, Attention, CrossAttention, Position
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, SLIDING, Family, bias, decoder_dims, tie
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HEADS, HIDDEN, POSITIONS
from meshwright.costmodels.model.operators import AttentionMask, Weight

_BERT_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_ROBERTA_DEFAULTS = _BERT_DEFAULTS | {"vocab_size": 50265}
_MPNET_DEFAULTS = _BERT_DEFAULTS | {"vocab_size": 30527, "relative_attention_num_buckets": 32}
_DISTILBERT_DEFAULTS = _BERT_DEFAULTS | {"num_hidden_layers": 6}
_DISTILBERT_ALIASES = {
    "hidden_size": ("dim",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "intermediate_size": ("hidden_dim",),
    "hidden_act": ("activation",),
}
_NOMIC_DEFAULTS = _BERT_DEFAULTS | {"vocab_size": 30528, "hidden_act": "silu"}
_NOMIC_ALIASES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
}
_MODERNBERT_DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "layer_types": None,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "tie_word_embeddings": True,
}
_VIT_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "id2label": None,
    "num_labels": 2,
}
_T5_DEFAULTS = {
    "vocab_size": 32128,
    "hidden_size": 512,
    "head_dim": 64,
    "d_ff": 2048,
    "num_hidden_layers": 6,
    "num_decoder_layers": None,
    "num_attention_heads": 8,
    "relative_attention_num_buckets": 32,
    "feed_forward_proj": "relu",
}
_T5_ALIASES = {
    "hidden_size": ("d_model",),
    "head_dim": ("d_kv",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
}
_WHISPER_DEFAULTS = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "decoder_layers": 4,
    "num_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "activation_function": "gelu",
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "tie_word_embeddings": True,
}
_WHISPER_ALIASES = {
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("encoder_layers",),
    "num_attention_heads": ("encoder_attention_heads",),
}
# Both convolutions of Whisper: three frames long, the second over every other frame (Radford et al. 2022, section 2.2).
_WHISPER_KERNEL, _WHISPER_STRIDE = 3, 2
_MEL, _FRAMES, _CONV_HIDDEN, _CONV_LENGTH = "mel", "frames_per_token", "conv_hidden", "conv_length"
_SOURCE_POSITIONS = "source_positions"
_TOKEN_TYPES = "token_types"
_MLM_HIDDEN = "mlm_hidden"
_PATCH = "patch"
_BUCKETS = "relative_buckets"


def _read_bert(fields: ConfigFields) -> Architecture:
    """Norms follow the residual adds; the masked-language head has a dense layer before the tied table."""
    fields.refuse("add_cross_attention", because="layers that read an encoder are not BERT's own")
    mask = AttentionMask.CAUSAL if fields.flag("is_decoder") else AttentionMask.FULL
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED, mask=mask)
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED)
    layers = (_post_norm_layer(attention, mlp),) * fields.layers()
    return _bert(fields, layers, Embedding(position_dim=POSITIONS, type_dim=_TOKEN_TYPES, norm=NormKind.LAYER))


def _read_mpnet(fields: ConfigFields) -> Architecture:
    """BERT without token types; the first layer holds the table of relative positions."""
    plain = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED, mask=AttentionMask.FULL)
    first = replace(plain, kernel_weights=(Weight(RELATIVE_POSITIONS, (_BUCKETS, HEADS)),))
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED)
    layers = (_post_norm_layer(first, mlp), *(_post_norm_layer(plain, mlp),) * (fields.layers() - 1))
    read = _bert(fields, layers, Embedding(position_dim=POSITIONS, norm=NormKind.LAYER))
    return replace(read, dims={**read.dims, _BUCKETS: fields.size("relative_attention_num_buckets")})


def _read_distilbert(fields: ConfigFields) -> Architecture:
    """BERT without token types; a classifier has a dense layer of its own, the model alone has none."""
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED, mask=AttentionMask.FULL)
    layer = _post_norm_layer(attention, Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED))
    return _without_pooler(_bert(fields, (layer,) * fields.layers(), Embedding(position_dim=POSITIONS, norm=NormKind.LAYER)))


def _read_nomic(fields: ConfigFields) -> Architecture:
    """BERT with rotated queries and keys, gated networks and no biases."""
    layer = _post_norm_layer(Attention(mask=AttentionMask.FULL), Mlp(Gate.GATED, fields.text("hidden_act")))
    return _without_pooler(_bert(fields, (layer,) * fields.layers(), Embedding(type_dim=_TOKEN_TYPES, norm=NormKind.LAYER)))


def _without_pooler(read: Architecture) -> Architecture:
    """The model alone then has no dense layer; a classifier has one all the same."""
    return replace(read, head=replace(read.head, pooler=None)) if isinstance(read.head, Head) else read


def _read_modernbert(fields: ConfigFields) -> Architecture:
    """Norms before the branches but for the first one's, a window in all but every third layer, gated networks."""
    if tie(fields) is Tie.SEPARATE:
        raise ModelError(f"{fields.family}: an untied masked-language head is not supported", allowed="true")
    n_layers, every = fields.layers(), fields.size("global_attn_every_n_layers")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if i % every else FULL for i in range(n_layers))
    kind = NormKind.LAYER if fields.flag("norm_bias") else NormKind.LAYER_SCALE_ONLY
    attention_bias, window = bias(fields.flag("attention_bias")), fields.size("local_attention")
    mlp = Branch("mlp", Mlp(Gate.GATED, fields.text("hidden_activation"), bias(fields.flag("mlp_bias"))), kind)
    full = Attention(qkv_bias=attention_bias, out_bias=attention_bias, mask=AttentionMask.FULL)
    near = replace(full, window=window)
    layers = tuple(
        Layer((Branch("attn", full if each == FULL else near, kind, NormPlace.BEFORE if i else NormPlace.INSIDE), mlp))
        for i, each in enumerate(kinds)
    )
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"))
    dims[_MLM_HIDDEN] = dims[HIDDEN]
    transform = Transform(_MLM_HIDDEN, fields.text("classifier_activation"), kind, bias(fields.flag("classifier_bias")))
    head = Head(Tie.TIED, kind, bias(fields.flag("decoder_bias")), transform=transform)
    return Architecture(dims, layers, head, Embedding(norm=kind))


def _post_norm_layer(attention: Attention, mlp: Mlp) -> Layer:
    return Layer(
        (
            Branch("attn", attention, NormKind.LAYER, NormPlace.ON_SUM),
            Branch("mlp", mlp, NormKind.LAYER, NormPlace.ON_SUM),
        )
    )


def _bert(fields: ConfigFields, layers: tuple[Layer, ...], embedding: Embedding) -> Architecture:
    """The layers with BERT's embedding and its masked-language head; without that head a dense layer pools."""
    if tie(fields) is Tie.SEPARATE:
        raise ModelError(f"{fields.family}: an untied masked-language head is not supported", allowed="true")
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"))
    dims[_MLM_HIDDEN] = dims[HIDDEN]
    if embedding.position_dim is not None:
        dims[POSITIONS] = fields.size("max_position_embeddings")
    if embedding.type_dim is not None:
        dims[_TOKEN_TYPES] = fields.size("type_vocab_size")
    transform = Transform(_MLM_HIDDEN, fields.text("hidden_act"), NormKind.LAYER)
    pooler = Transform(_MLM_HIDDEN, "tanh", None)
    return Architecture(dims, layers, Head(Tie.TIED, None, Bias.ADDED, transform=transform, pooler=pooler), embedding)


def _read_vit(fields: ConfigFields) -> Architecture:
    """Sequences are image patches and a class token; the classes stand for the vocabulary."""
    image, patch = fields.size("image_size"), fields.size("patch_size")
    if patch > image:
        raise ModelError(
            f"{fields.family}: a patch can't be larger than the image", given={"image_size": image, "patch_size": patch}
        )
    attention = Attention(Position.ELSEWHERE, bias(fields.flag("qkv_bias")), Bias.ADDED, mask=AttentionMask.FULL)
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED)
    layer = Layer((Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER)))
    classes = fields.optional_entries("id2label") or fields.size("num_labels")
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"), vocab=classes)
    dims |= {POSITIONS: (image // patch) ** 2 + 1, _PATCH: fields.size("num_channels") * patch**2}
    return Architecture(dims, (layer,) * fields.layers(), ClassHead(NormKind.LAYER), PatchEmbedding(_PATCH, POSITIONS))


def _read_t5(fields: ConfigFields) -> EncoderDecoder:
    """The first layer of each stack holds its table of relative positions; the table of tokens is shared and tied."""
    mlp = Branch("mlp", _t5_mlp(fields), NormKind.RMS)
    n_encoder = fields.layers()
    n_decoder = n_encoder if fields.optional_size("num_decoder_layers") is None else fields.layers("num_decoder_layers")
    cross = Branch("cross", CrossAttention(), NormKind.RMS)
    encoder = tuple(Layer((attention, mlp)) for attention in _t5_attentions(n_encoder, AttentionMask.FULL))
    decoder = tuple(Layer((attention, cross, mlp)) for attention in _t5_attentions(n_decoder, AttentionMask.CAUSAL))
    dims = decoder_dims(fields, ffn=fields.size("d_ff"), head_dim=fields.size("head_dim"))
    dims[_BUCKETS] = fields.size("relative_attention_num_buckets")
    # transformers ties the head whatever the file says; tie_word_embeddings only tells T5 v1.1 from v1.0 there.
    return EncoderDecoder(dims, encoder, decoder, NormKind.RMS, Head(Tie.TIED, NormKind.RMS))


def _read_whisper(fields: ConfigFields) -> EncoderDecoder:
    """Convolutions and an encoder of audio, a decoder of text with tables of its own."""
    for ours, other in (("num_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if fields.size(ours) != fields.size(other):
            raise ModelError(
                f"{fields.family}: encoder and decoder layers of different widths are not supported",
                given={ours: fields.size(ours), other: fields.size(other)},
            )
    function = fields.text("activation_function")
    mlp = Branch("mlp", Mlp(Gate.PLAIN, function, Bias.ADDED), NormKind.LAYER)
    attentions = {
        mask: Branch("attn", Attention(Position.ELSEWHERE, Bias.EXCEPT_KEYS, Bias.ADDED, mask=mask), NormKind.LAYER)
        for mask in (AttentionMask.FULL, AttentionMask.CAUSAL)
    }
    cross = Branch("cross", CrossAttention(Bias.EXCEPT_KEYS), NormKind.LAYER)
    dims = decoder_dims(fields, ffn=fields.size("encoder_ffn_dim"))
    dims |= {
        POSITIONS: fields.size("max_target_positions"),
        _SOURCE_POSITIONS: fields.size("max_source_positions"),
        _MEL: fields.size("num_mel_bins"),
        _FRAMES: _WHISPER_STRIDE,
        _CONV_HIDDEN: dims[HIDDEN],
        _CONV_LENGTH: _WHISPER_KERNEL,
    }
    return EncoderDecoder(
        dims,
        (Layer((attentions[AttentionMask.FULL], mlp)),) * fields.layers(),
        (Layer((attentions[AttentionMask.CAUSAL], cross, mlp)),) * fields.layers("decoder_layers"),
        NormKind.LAYER,
        Head(tie(fields), NormKind.LAYER),
        source=AudioEmbedding(_MEL, _FRAMES, _CONV_HIDDEN, _CONV_LENGTH, _SOURCE_POSITIONS, function),
        target=Embedding(position_dim=POSITIONS),
    )


def _t5_attentions(n_layers: int, mask: AttentionMask) -> list[Branch]:
    table = (Weight(RELATIVE_POSITIONS, (_BUCKETS, HEADS)),)
    first = Attention(Position.ELSEWHERE, mask=mask, kernel_weights=table)
    other = Attention(Position.ELSEWHERE, mask=mask)
    return [Branch("attn", first if i == 0 else other, NormKind.RMS) for i in range(n_layers)]


def _t5_mlp(fields: ConfigFields) -> Mlp:
    name = fields.text("feed_forward_proj")
    if name == "gated-gelu":
        return Mlp(Gate.GATED, "gelu_new")
    gated = name.startswith("gated-")
    return Mlp(Gate.GATED if gated else Gate.PLAIN, name.removeprefix("gated-"))


ENCODER_FAMILIES = (
    Family("bert", ("BertForMaskedLM", "BertLMHeadModel"), _read_bert, _BERT_DEFAULTS),
    Family("roberta", ("RobertaForMaskedLM",), _read_bert, _ROBERTA_DEFAULTS),
    Family("xlm-roberta", ("XLMRobertaForMaskedLM",), _read_bert, _BERT_DEFAULTS),
    Family("camembert", ("CamembertForMaskedLM",), _read_bert, _BERT_DEFAULTS),
    Family("mpnet", ("MPNetForMaskedLM",), _read_mpnet, _MPNET_DEFAULTS),
    Family("distilbert", ("DistilBertForMaskedLM",), _read_distilbert, _DISTILBERT_DEFAULTS, _DISTILBERT_ALIASES),
    Family("nomic_bert", ("NomicBertForMaskedLM",), _read_nomic, _NOMIC_DEFAULTS, _NOMIC_ALIASES),
    Family("modernbert", ("ModernBertForMaskedLM",), _read_modernbert, _MODERNBERT_DEFAULTS),
    Family("vit", ("ViTForImageClassification",), _read_vit, _VIT_DEFAULTS),
    Family("t5", ("T5ForConditionalGeneration",), _read_t5, _T5_DEFAULTS, _T5_ALIASES),
    Family("whisper", ("WhisperForConditionalGeneration",), _read_whisper, _WHISPER_DEFAULTS, _WHISPER_ALIASES),
)
