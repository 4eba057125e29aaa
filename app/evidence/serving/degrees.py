"""The workers of a row: how many, and their degrees, from the columns that tables write them in."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from meshwright.app.base.digits import is_digits
from meshwright.app.evidence.serving.recipes import BenchmarkLoad, BenchmarkSource, EngineName
from meshwright.app.evidence.serving.rows import AGGREGATED, PhaseCells, ServingRun
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.launching.launchers.table import launch_flags
from meshwright.app.launching.parts.serving import LaunchFlags, degrees
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.serving.engines.layouts import FP8_BLOCK

_DEVICES_PER_SERVER = 8


@dataclass(frozen=True, slots=True)
class EqualWorkers:
    """Equal replicas of one phase, or of both."""

    count: int
    tp: int
    pp: int
    ep: int
    attention_dp: int

    @property
    def devices(self) -> int:
        """Devices of one of them."""
        return self.tp * self.pp * self.attention_dp


def workers_of(run: ServingRun, *, degrees_multiplied: bool) -> tuple[EqualWorkers | None, EqualWorkers]:
    """Return the prefill workers, None where one worker does both phases, and the decode workers; raises NotPredictedError
    where the row does not state them. ``degrees_multiplied`` says that its source writes products of degrees."""
    if run.mode != AGGREGATED:
        if run.prefill is not None and run.decode is not None:
            return _of_columns(run.prefill), _of_columns(run.decode)
        return _phase(run, "P"), _phase(run, "D")
    if not run.tp and run.n_gpus:
        if run.n_gpus < _degree(run.pp):
            raise NotPredictedError(f"{_degree(run.pp)} stages on {run.n_gpus} devices")
        # Without degrees: one worker over all devices.
        return None, EqualWorkers(1, run.n_gpus // _degree(run.pp), _degree(run.pp), _degree(run.ep), 1)
    tp, attention_dp, ep = _degree(run.tp), _degree(run.attention_dp), _degree(run.ep)
    pp = _degree(run.pp)
    if degrees_multiplied and tp == attention_dp > 1 and tp * attention_dp == run.n_gpus == ep:
        # Each of these degrees is that of the same devices: rows called "tp4_ep4" state 4, 4 and 16 on 16 devices.
        return None, EqualWorkers(1, tp, pp, tp, 1)
    if degrees_multiplied and tp * attention_dp == run.n_gpus and (tp > ep > 1 or tp * attention_dp > _DEVICES_PER_SERVER):
        # These rows multiply the degree of attention by that of experts, which share the same devices of one server: they
        # repeat rows of tp 2, 4 and 8 as 4, 16 and 64 with ep 2, 4 and 8.
        tp, attention_dp = max(1, tp // ep), max(1, attention_dp // ep)
        return None, EqualWorkers(1, tp, pp, ep, attention_dp)
    one = EqualWorkers(1, tp, pp, ep, attention_dp)
    if attention_dp == tp and run.n_gpus == tp * pp:
        # Some sources state attention dp on the same devices as tp.
        one = EqualWorkers(1, 1, pp, ep, attention_dp)
    count = 1 if run.n_gpus is None else max(1, run.n_gpus // one.devices)
    return None, EqualWorkers(count, one.tp, pp, ep, one.attention_dp)


def launched(
    workers: EqualWorkers, flags: LaunchFlags, engine: EngineName, *, n_gpus: int | None, experts: bool
) -> EqualWorkers:
    """Return the workers of a row that does both phases with the degrees that its launch command gives.

    Raises NotPredictedError for degrees that no engine starts with.
    """
    if flags.tp is None and flags.dp is None:
        return workers if not flags.ep else replace(workers, ep=flags.ep)
    try:
        of_server = degrees(flags, engine.engine, experts=experts)
    except InvalidInputError as error:
        raise NotPredictedError(error.problem) from None
    one = EqualWorkers(1, of_server.tp * of_server.kvp * of_server.cp, of_server.pp, of_server.ep, of_server.attention_dp)
    return replace(one, count=max(1, (n_gpus or one.devices) // one.devices))


def with_whole_blocks(workers: EqualWorkers, expert_width: int) -> EqualWorkers:
    """Return workers of a checkpoint in blocks of 128 x 128, with their experts whole where its degrees would cut blocks.

    No engine starts otherwise (ValueError "is not divisible by weight quantization block_n" in vllm-project/vllm pull 39046, of
    SGLang the same; NVIDIA/TensorRT-LLM pull 14613): what ran had expert parallelism, which tables often leave out.
    """
    ranks = workers.tp * workers.attention_dp
    cuts = expert_width // max(1, ranks // workers.ep) % FP8_BLOCK > 0
    return replace(workers, ep=ranks) if cuts else workers


def flags_of(engine: EngineName, command: str) -> LaunchFlags:
    """Return the known flags of a row's launch command; raises NotPredictedError for one that the engine would refuse."""
    try:
        return launch_flags(engine.engine, command)
    except InvalidInputError as error:
        raise NotPredictedError(error.problem) from None


def _of_columns(cells: PhaseCells) -> EqualWorkers:
    apart = cells.attention_apart
    return EqualWorkers(cells.workers, 1 if apart else cells.tp, 1, cells.ep, cells.tp if apart else 1)


def _phase(run: ServingRun, phase: str) -> EqualWorkers:
    """Workers of one phase: "P1x8/D9x8" is one prefill worker of tp 8 and nine decode workers of tp 8."""
    shape = re.search(rf"{phase}(\d+)x(\d+)", run.tp)
    if shape is None or not int(shape[1]) or not int(shape[2]):
        raise NotPredictedError("the row does not state the workers of each phase")
    attention_dp, ep = (re.search(rf"{phase}(\d+)", text) for text in (run.attention_dp, run.ep))
    return EqualWorkers(
        count=int(shape[1]),
        tp=int(shape[2]),
        pp=1,
        ep=max(1, int(ep[1])) if ep else 1,
        attention_dp=max(1, int(attention_dp[1])) if attention_dp else 1,
    )


def _degree(text: str) -> int:
    """A degree; nothing and 0 mean that the axis is not used."""
    return max(1, int(text)) if is_digits(text) else 1


# The published launch recipes of prefill and decode pools: how many tokens and sequences the workers of each phase take.
#
# NVIDIA publishes the configurations of DeepSeek-R1 that InferenceX runs on its nodes (github.com/NVIDIA/srt-slurm, recipes/,
# as of August 2026), InferenceX its own (github.com/SemiAnalysisAI/InferenceX, nvidia-master.yaml of December 2025 to February
# 2026, and that of gpt-oss), each for few numbers of clients. Decode workers take no more sequences than they have CUDA graphs
# for, often fewer than there are clients: the others wait for a place, and their first token with them.

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


def published_limits(load: BenchmarkLoad, prefill: EqualWorkers, decode: EqualWorkers, *, has_drafts: bool) -> PoolLimits:
    """Return the limits of the one recipe that a row of InferenceX fits: same model, node, precision, lengths, clients,
    workers and drafts; no limits where none or several differing ones do."""
    if load.source is not BenchmarkSource.INFERENCEX:
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
