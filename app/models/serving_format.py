"""The formats of the checkpoints that measured tables name: what of a model they store narrow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshwright.app.models.catalog import model, model_document, model_names
from meshwright.app.models.catalog.copies import NVFP4, Copy, copy_of
from meshwright.app.models.checkpoint import CheckpointFormat, checkpoint_format
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import DType

_BLOCKS = CheckpointFormat(DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS)
_MAKERS_FP8: Mapping[str, CheckpointFormat] = dict.fromkeys(("qwen3-235b-a22b", "glm-5", "qwen3.5-397b-a17b"), _BLOCKS)
"""The fp8 checkpoints of their own makers that a row means which says fp8 of these: their quantization_config
(Qwen/Qwen3-235B-A22B-FP8; of GLM-5-FP8 and Qwen3.5-397B-A17B-FP8 from memory). Of other models each matrix has one scale."""


@cache
def stored_format(text: str, name: str) -> CheckpointFormat | None:
    """Return the format of a checkpoint by its id, of which the catalogue has the sizes under a name; None where nothing of it
    is quantised, or the catalogue has no such model."""
    if name not in model_names():
        return None
    named = copy_of(text)
    stored = None if named is None or named.name != name else named.stored
    return _of_copy(Copy(name, name, stored))


def _of_copy(copy: Copy) -> CheckpointFormat | None:
    has_experts = EXPERTS in model(copy.name).dims
    return checkpoint_format(copy.config(model_document(copy.name), has_experts=has_experts))


@cache
def said_format(text: str, name: str, precision: DType) -> CheckpointFormat | None:
    """Return the format of the checkpoint that a row means which says a precision beside an id; None of one that is computed
    in that precision with one scale a matrix, or in 16 bits.

    The id's own format where it has that precision; a checkpoint in MXFP4 has no other.
    """
    own = stored_format(text, name)
    if own is not None and (own.precision is precision or (own.weights is WeightFormat.MXFP4 and precision is not DType.BF16)):
        return own
    if precision is DType.FP4 and name in model_names():
        return _of_copy(Copy(name, name, NVFP4))
    return _MAKERS_FP8.get(name) if precision is DType.FP8 else None
