"""The table of logs that can be read, reading a log whose writer is not named, and the run that it tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from meshwright.app.base.documents import read_bounded
from meshwright.app.evidence.logs import (
    deepspeed,
    genai_perf,
    guidellm,
    hf_trainer,
    llama_factory,
    megatron_lm,
    mini_sglang,
    nemo,
    serving_benchmark,
    torchtitan,
    trtllm_bench,
    vllm_server,
)
from meshwright.app.evidence.logs.logged import Logged, figures_of, ran_out_of_memory
from meshwright.app.evidence.logs.matching import mismatches, rate_besides, require_match
from meshwright.app.evidence.logs.stated import Stated, merged
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.app.store.runs import MeasuredRun, RunOutcome, read_run
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.request import ServingRequest

MAX_LOG_BYTES = 256 * 2**20
MAX_LINE = 4_000
"""Characters of a line that are read."""


READERS: Mapping[LogWriter, Callable[[Sequence[str]], Logged]] = MappingProxyType(
    {
        LogWriter.MEGATRON_LM: megatron_lm.read,
        LogWriter.TORCHTITAN: torchtitan.read,
        LogWriter.NEMO: nemo.read,
        LogWriter.DEEPSPEED: deepspeed.read,
        LogWriter.HF_TRAINER: hf_trainer.read,
        LogWriter.LLAMA_FACTORY: llama_factory.read,
        LogWriter.SERVING_BENCHMARK: serving_benchmark.read,
        LogWriter.GENAI_PERF: genai_perf.read,
        LogWriter.GUIDELLM: guidellm.read,
        LogWriter.TRTLLM_BENCH: trtllm_bench.read,
        LogWriter.MINI_SGLANG: mini_sglang.read,
        LogWriter.VLLM_SERVER: vllm_server.read,
    }
)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log as it was read: its figures, or that memory ran out, and the workload that all of its lines state."""

    logged: Logged
    is_out_of_memory: bool

    @property
    def stated(self) -> Stated:
        """The workload that the log states."""
        return self.logged.stated

    def run(self, answered: AnsweredRequest, *, plan: str) -> MeasuredRun:
        """Return the run of a plan of the log's workload; ``plan`` is the plan's digest. Raises InvalidInputError."""
        if self.is_out_of_memory:
            return MeasuredRun(plan, RunOutcome.OUT_OF_MEMORY)
        rate = rate_besides(self.stated, answered)
        load = {} if rate is None else {"requests_per_s": rate}
        return read_run({"plan": plan, **figures_of(self.logged, answered), **load})


def run_of_log(path: Path, answered: AnsweredRequest, *, plan: str, writer: LogWriter | None = None) -> MeasuredRun:
    """The run that a log tells of; ``plan`` is its plan's digest. Raises InvalidInputError where the log tells of none, and
    where it is of another workload than the plan."""
    log = read_log(path, answered, writer=writer)
    require_match(log.stated, answered)
    return log.run(answered, plan=plan)


def read_log(path: Path, answered: AnsweredRequest, *, writer: LogWriter | None = None) -> ReadLog:
    """What a log says; of a file of several results the one of the plan's load. Raises InvalidInputError where it says nothing
    of a run."""
    lines = _lines(path)
    read = {each: reader(lines) for each, reader in READERS.items()}
    tried = [read[writer]] if writer is not None else list(read.values())
    chosen = next((each for each in tried if each.has_times), next((each for each in tried if each.peak_memory_bytes), None))
    is_out_of_memory = ran_out_of_memory(lines)
    if is_out_of_memory:
        chosen = chosen or Logged()
    if chosen is None or not (chosen.has_times or is_out_of_memory):
        _refuse_unread(tried)
    if chosen is None:
        raise InvalidInputError(
            "the log tells of no step, no benchmark and no end of memory",
            given=str(path),
            allowed=", ".join(LogWriter),
            remedy="give --step-time and --peak-memory, or --out-of-memory",
        )
    chosen = _of_plan(chosen, answered)
    stated = merged([chosen.stated, *(each.stated for each in read.values())])
    return ReadLog(replace(chosen, stated=stated, others=()), is_out_of_memory)


def _refuse_unread(read: Sequence[Logged]) -> None:
    """Refuse a log whose speed can't be read: its memory alone would hide that."""
    unread = next((each.unread for each in read if each.unread), "")
    if unread:
        raise InvalidInputError(
            "the log's speed can't be read as the time of a step",
            given=unread,
            remedy="give --step-time and --peak-memory instead of the log",
        )


def _of_plan(chosen: Logged, answered: AnsweredRequest) -> Logged:
    """The one of several results that is of the plan's load; raises InvalidInputError where none or more are."""
    if not chosen.others or not isinstance(answered.request, ServingRequest):
        return chosen
    results = [*chosen.others, chosen]
    fitting = [each for each in results if not mismatches(each.stated, answered)]
    if len(fitting) == 1:
        return fitting[0]
    loads = ", ".join(f"{each.stated.max_concurrency or each.stated.requests_per_s}" for each in results)
    raise InvalidInputError(
        f"{len(fitting)} results of the file are of the plan's workload",
        given=f"{len(results)} results, of loads {loads}",
        allowed="one",
        remedy="give a file with the one result that is of this plan",
    )


def _lines(path: Path) -> list[str]:
    """The lines of a log, packed or not, each cut to what can matter of it; a JSON document is kept whole."""
    try:
        with path.open("rb") as file:
            text = read_bounded(file, limit=MAX_LOG_BYTES, what="log").decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(f"the log can't be read: {reason}", given=str(path)) from None
    lines = text.splitlines()
    return lines if text.lstrip().startswith("{") else [line[:MAX_LINE] for line in lines]
