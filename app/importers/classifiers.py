"""Decoders with a classifier in the place of the vocabulary head: reward models, rerankers, guards.

transformers has one form for all decoders (``GenericForSequenceClassification``): the last token's vector, after the final
norm, times a matrix without bias that has a row for each label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.app.importers.architecture import Architecture, ClassHead, EncoderDecoder, Head
from meshwright.app.importers.config_fields import MAX_FIELD, ConfigFields
from meshwright.app.importers.families.family import Family
from meshwright.app.importers.parts import Bias
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HIDDEN

LABELS = "labels"
"""Classes of a classifier."""

_SUFFIX = "ForSequenceClassification"
_DECODER_SUFFIX = "ForCausalLM"
_OTHER_FORMS = {"GPT2LMHeadModel": "GPT2"}
# A model that says nothing of its labels has two (transformers 5.23, PreTrainedConfig).
_USUAL_LABELS = 2


def classifier_names(family: Family) -> tuple[str, ...]:
    """The classes of a family's classifiers, one for each class of its decoders."""
    stems = ((name, _OTHER_FORMS.get(name, name.removesuffix(_DECODER_SUFFIX))) for name in family.architectures)
    return tuple(f"{stem}{_SUFFIX}" for name, stem in stems if stem != name)


def as_classifier(architecture: Architecture | EncoderDecoder, document: Mapping[str, Any], family: str) -> Architecture:
    """The architecture with a classifier of the file's labels as its head; raises ModelError for labels that are none."""
    if isinstance(architecture, EncoderDecoder) or not isinstance(architecture.head, Head) or architecture.head.width != HIDDEN:
        raise ModelError(f"{family}: a classifier of this kind is not supported", allowed="decoders with one final norm")
    head = ClassHead(architecture.head.norm, Bias.NONE, LABELS)
    return replace(architecture, dims={**architecture.dims, LABELS: _labels(document, family)}, head=head)


def _labels(document: Mapping[str, Any], family: str) -> int:
    fields = ConfigFields(document, family, {"num_labels": None, "id2label": None})
    count = fields.optional_entries("id2label") or fields.optional_size("num_labels") or _USUAL_LABELS
    return min(count, MAX_FIELD)
