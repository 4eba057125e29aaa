"""Layers of each part of a pipeline, as Megatron-LM's flags say them."""

from __future__ import annotations

import re

from meshwright.app.launch_flags.megatron_lm import MegatronFlags
from meshwright.costmodels.errors import InvalidInputError

MOST_LAYERS = 10_000
"""Letters that a layout may stand for."""
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([A-Za-z]))\*([0-9]{1,5})")


def layers_of_parts(flags: MegatronFlags, layers: int, pp: int, chunks: int) -> tuple[int, ...]:
    """Return the decoder layers of each stage or virtual stage, in order of the model.

    ``chunks`` are virtual stages a rank. Raises InvalidInputError for what does not divide.
    """
    if flags.pipeline_model_parallel_layout is not None:
        return _of_layout(flags.pipeline_model_parallel_layout, layers, pp)
    first, last = flags.decoder_first_pipeline_num_layers, flags.decoder_last_pipeline_num_layers
    if first is not None or last is not None:
        return _of_ends(first, last, layers, pp)
    ends = flags.account_for_embedding_in_pipeline_split, flags.account_for_loss_in_pipeline_split
    each, rest = divmod(layers + sum(ends), pp * chunks)
    if rest:
        raise InvalidInputError(
            f"--num-layers {layers}: {layers + sum(ends)} layers do not divide by {pp * chunks} stages or virtual stages"
        )
    parts = [each] * (pp * chunks)
    parts[0] -= int(ends[0])
    parts[-1] -= int(ends[1])
    return tuple(parts)


def _of_ends(first: int | None, last: int | None, layers: int, pp: int) -> tuple[int, ...]:
    between = pp - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    if between < 1 or left < between or left % between:
        raise InvalidInputError(f"{left} layers do not divide by the {between} stages between the first and the last")
    ends = ([] if first is None else [first]), ([] if last is None else [last])
    return (*ends[0], *([left // between] * between), *ends[1])


def _of_layout(text: str, layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each part: E embedding, t decoder layer, m prediction layer, L loss, | next part, ``(...)*n`` repeated."""
    flat = re.sub(r"[,\s]", "", text)
    while (found := _REPEATED.search(flat)) is not None:
        inner, times = found[1] or found[2], int(found[3])
        if len(inner) * times + len(flat) > MOST_LAYERS:
            raise InvalidInputError(f"--pipeline-model-parallel-layout: more than {MOST_LAYERS:,} layers", given=text)
        flat = flat[: found.start()] + inner * times + flat[found.end() :]
    parts = tuple(part.count("t") for part in flat.split("|"))
    well_made = re.fullmatch(r"[EtmL|]*", flat) and flat.count("E") == flat.count("L") == 1
    if not well_made or sum(parts) != layers or len(parts) % pp:
        raise InvalidInputError(
            f"--pipeline-model-parallel-layout: {sum(parts)} layers in {len(parts)} parts; the model has {layers} layers, "
            f"and parts must be a multiple of {pp} stages",
            given=text,
        )
    return parts
