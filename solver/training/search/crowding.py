"""Candidates whose memory suffices under no sharding, found without trying each: a model with several distinct blocks has the
product of their frontiers as its shardings, thousands where blocks have tens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.stage_table import Sharding, StageKind, StageTable
from meshwright.solver.training.search.partition import smallest_shortfall
from meshwright.solver.training.space.candidates import Candidate


def crowded_candidates(
    candidates: tuple[Candidate, ...], shardings: tuple[Sharding, ...], kinds: tuple[StageKind, ...], costs: TrainingCosts
) -> tuple[Sharding, tuple[Candidate, ...]]:
    """The sharding that keeps least in memory, and which of candidates that differ in schedule alone fit under none.

    Relaxed: every block has the least of each kind of memory that any of its own shardings takes. Where that is as much work as
    to try them (one sharding, or one distinct block), no candidate is called crowded.
    """
    samples = _every_choice_once(shardings)
    if len(samples) == len(shardings):
        return shardings[0] if shardings else (), ()
    tables = {sharding: costs.stage_tables(candidates[0], sharding, kinds) for sharding in samples}
    kept = {
        (block, choice): _kept_bytes(tables[sharding][0], costs.layer_block == block)
        for sharding in samples
        for block, choice in enumerate(sharding)
    }
    roomiest = min(shardings, key=lambda sharding: sum(kept[item] for item in enumerate(sharding)))
    least = _least_of_each(list(tables.values()))
    crowded = tuple(candidate for candidate in candidates if smallest_shortfall(candidate, least).lacking_bytes > 0)
    return roomiest, crowded


def _every_choice_once(shardings: tuple[Sharding, ...]) -> list[Sharding]:
    """Some of the shardings in which every block has each of its choices."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    samples = []
    for sharding in shardings:
        new = set(enumerate(sharding)) - seen
        if new:
            samples.append(sharding)
            seen |= new
    return samples


def _kept_bytes(table: StageTable, layers: npt.NDArray[np.bool_]) -> float:
    """Return the bytes that these layers keep with one micro-batch in flight, under the recompute mode that keeps least."""
    return float((table.static_bytes + table.activation_bytes.min(axis=0))[layers].sum())


def _least_of_each(tables: list[tuple[StageTable, ...]]) -> tuple[StageTable, ...]:
    """By stage position, the least of each kind of memory over the tables; equal positions share one object."""
    made: dict[StageTable, StageTable] = {}
    for position, table in enumerate(tables[0]):
        if table not in made:
            here = [of_sharding[position] for of_sharding in tables]
            made[table] = replace(
                table,
                static_bytes=np.min([t.static_bytes for t in here], axis=0),
                activation_bytes=np.min([t.activation_bytes for t in here], axis=0),
                transient_bytes=np.min([t.transient_bytes for t in here], axis=0),
            )
    return tuple(made[table] for table in tables[0])
