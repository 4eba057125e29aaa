"""The table of logs that can be read, and reading a log whose writer is not named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from meshwright.app.base.documents import read_bounded
from meshwright.app.evidence.logs import deepspeed, hf_trainer, megatron_lm, serving_benchmark, torchtitan, vllm_server
from meshwright.app.evidence.logs.logged import Logged, figures_of, ran_out_of_memory
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.app.store.runs import MeasuredRun, RunOutcome, read_run
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

MAX_LOG_BYTES = 256 * 2**20
MAX_LINE = 4_000
"""Characters of a line that are read."""


READERS: Mapping[LogWriter, Callable[[Sequence[str]], Logged]] = MappingProxyType(
    {
        LogWriter.MEGATRON_LM: megatron_lm.read,
        LogWriter.TORCHTITAN: torchtitan.read,
        LogWriter.DEEPSPEED: deepspeed.read,
        LogWriter.HF_TRAINER: hf_trainer.read,
        LogWriter.SERVING_BENCHMARK: serving_benchmark.read,
        LogWriter.VLLM_SERVER: vllm_server.read,
    }
)


def run_of_log(path: Path, answered: AnsweredRequest, *, plan: str, writer: LogWriter | None = None) -> MeasuredRun:
    """The run that a log tells of; ``plan`` is its plan's digest. Raises InvalidInputError where the log tells of none."""
    lines = _lines(path)
    if ran_out_of_memory(lines):
        return MeasuredRun(plan, RunOutcome.OUT_OF_MEMORY)
    tried = [writer] if writer is not None else list(LogWriter)
    read = [READERS[each](lines) for each in tried]
    logged = next((each for each in read if each.has_times), next((each for each in read if each.peak_memory_bytes), None))
    if logged is None:
        raise InvalidInputError(
            "the log tells of no step, no benchmark and no end of memory",
            given=str(path),
            allowed=", ".join(LogWriter),
            remedy="give --step-time and --peak-memory, or --out-of-memory",
        )
    return read_run({"plan": plan, **figures_of(logged, answered)})


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
