"""Models with encoders: BERT (masked language model), ViT (image classifier), T5 and Whisper (encoder and decoder)."""

from __future__ import annotations

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
from meshwright.app.models.families.family import Family, bias, decoder_dims, tie
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
    if tie(fields) is Tie.SEPARATE:
        raise ModelError(f"{fields.family}: an untied masked-language head is not supported", allowed="true")
    mask = AttentionMask.CAUSAL if fields.flag("is_decoder") else AttentionMask.FULL
    function = fields.text("hidden_act")
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED, mask=mask)
    layer = Layer(
        (
            Branch("attn", attention, NormKind.LAYER, NormPlace.ON_SUM),
            Branch("mlp", Mlp(Gate.PLAIN, function, Bias.ADDED), NormKind.LAYER, NormPlace.ON_SUM),
        )
    )
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"))
    dims |= {
        POSITIONS: fields.size("max_position_embeddings"),
        _TOKEN_TYPES: fields.size("type_vocab_size"),
        _MLM_HIDDEN: dims[HIDDEN],
    }
    transform = Transform(_MLM_HIDDEN, function, NormKind.LAYER)
    return Architecture(
        dims,
        (layer,) * fields.layers(),
        Head(Tie.TIED, None, Bias.ADDED, transform=transform),
        Embedding(position_dim=POSITIONS, type_dim=_TOKEN_TYPES, norm=NormKind.LAYER),
    )


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
    Family("vit", ("ViTForImageClassification",), _read_vit, _VIT_DEFAULTS),
    Family("t5", ("T5ForConditionalGeneration",), _read_t5, _T5_DEFAULTS, _T5_ALIASES),
    Family("whisper", ("WhisperForConditionalGeneration",), _read_whisper, _WHISPER_DEFAULTS, _WHISPER_ALIASES),
)
