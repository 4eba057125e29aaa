"""The published launch recipes of prefill and decode pools: how many tokens and sequences the workers of each phase take.

NVIDIA publishes the configurations of DeepSeek-R1 that InferenceX runs on its nodes (github.com/NVIDIA/srt-slurm, recipes/,
as of August 2026), InferenceX its own (github.com/SemiAnalysisAI/InferenceX, nvidia-master.yaml of December 2025 to February
2026, and that of gpt-oss), each for few numbers of clients. Decode workers take no more sequences than they have CUDA graphs
for, often fewer than there are clients: the others wait for a place, and their first token with them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from meshwright.app.validation.serving.degrees import Workers
from meshwright.app.validation.serving.recipes import Load, Source

_TABLE = Path(__file__).with_name("pool_recipes.csv")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of the workers of both phases, each those of an attention group; None where a recipe sets none.

    ``prefill_tokens`` are those of a prefill worker's step.
    """

    prefill_tokens: int | None = None
    prefill_sequences: int | None = None
    decode_sequences: int | None = None


NO_LIMITS = PoolLimits()

_Key = tuple[str, ...]


def published_limits(load: Load, prefill: Workers, decode: Workers, *, has_drafts: bool) -> PoolLimits:
    """Return the limits of the one recipe that a row of InferenceX fits: same model, node, precision, lengths, clients,
    workers and drafts; no limits where none or several differing ones do."""
    if load.source is not Source.INFERENCEX:
        return NO_LIMITS
    asked = (
        load.engine.value,
        load.model,
        load.node,
        load.precision.value,
        load.prompt_tokens,
        load.output_tokens,
        load.clients,
        prefill.count,
        prefill.devices,
        decode.count,
        decode.devices,
        int(decode.attention_dp > 1),
        has_drafts,
    )
    fitting = _recipes().get(tuple(map(str, asked)), ())
    return next(iter(fitting)) if len(fitting) == 1 else NO_LIMITS


@cache
def _recipes() -> Mapping[_Key, frozenset[PoolLimits]]:
    found: dict[_Key, set[PoolLimits]] = {}
    with _TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            lengths = (row["prompt_tokens"], row["output_tokens"])
            workers = (row["prefill_workers"], row["prefill_devices"], row["decode_workers"], row["decode_devices"])
            limits = PoolLimits(**{each.name: int(row[each.name]) if row[each.name] else None for each in fields(PoolLimits)})
            for clients in row["clients"].split():
                key = (row["engine"], row["model"], row["node"], row["precision"], *lengths, clients, *workers)
                found.setdefault((*key, row["attention_apart"], str(row["drafts"] != "0")), set()).add(limits)
    return {key: frozenset(limits) for key, limits in found.items()}
