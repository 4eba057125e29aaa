"""The number of ranks of each axis of a plan's mesh."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.units import STRICT_RECORD


@dataclass(frozen=True, slots=True)
class Axes:
    """Degrees of the mesh axes.

    Serving: ``dp`` are replicas; a pipeline stage of a replica has tp x kvp x cp x attention_dp ranks. ``kvp`` ranks split each
    cache along the sequence, ``cp`` groups share prompts, ``attention_dp`` groups run attention for requests of their own,
    ``ep`` groups hold experts.
    Training: ``etp`` ranks share an expert, as many as tp where it is None; of the ``cp`` ranks of a sequence ``ulysses``
    neighbours exchange tokens for heads, and cp / ulysses form a ring.
    """

    __pydantic_config__ = STRICT_RECORD

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    attention_dp: int = 1
    kvp: int = 1
    ulysses: int = 1
    etp: int | None = None
