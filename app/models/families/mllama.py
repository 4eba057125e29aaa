"""Llama 3.2 Vision's text model: between its layers some attend to an image in the place of the text.

Layers that attend to an image are planned as attention over the text: their parameters are exact, and their keys and values
count for each token of the text, not for the patches of an image.
"""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Embedding, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, Position, QkNorm
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, gated_mlp, llama_dims, rms_head
from meshwright.costmodels.model.operators import Weight

_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "cross_attention_layers": None,
}
_CROSS_LAYERS = frozenset({3, 8, 13, 18, 23, 28, 33, 38})
_GATES, _IMAGE_TOKENS = "cross_gates", "image_tokens"
# A gate of each branch of a layer that attends to an image; entries of the embedding that the head has no columns for.
_N_GATES, _N_IMAGE_TOKENS = 2, 8


def _read_mllama(fields: ConfigFields) -> Architecture:
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    given = fields.optional_indices("cross_attention_layers")
    crossing = _CROSS_LAYERS if given is None else given
    to_text = Layer((Branch("attn", Attention(), NormKind.RMS), mlp))
    gates = (Weight("gates", (_GATES,)),)
    to_image = Attention(Position.ELSEWHERE, qk_norm=QkNorm.PER_HEAD, kernel_weights=gates)
    with_image = Layer((Branch("attn", to_image, NormKind.RMS), mlp))
    layers = tuple(with_image if i in crossing else to_text for i in range(fields.layers()))
    dims = llama_dims(fields) | {_GATES: _N_GATES, _IMAGE_TOKENS: _N_IMAGE_TOKENS}
    return Architecture(dims, layers, rms_head(fields), Embedding(type_dim=_IMAGE_TOKENS))


MLLAMA_FAMILIES = (Family("mllama_text_model", ("MllamaForCausalLM",), _read_mllama, _DEFAULTS),)
