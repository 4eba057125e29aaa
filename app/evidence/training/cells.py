"""Tables of measurements as CSV: their header checked, each cell read as what it must be; and why a run is not predicted."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from meshwright.costmodels.errors import InvalidInputError, MeshwrightError


class NotPredictedError(MeshwrightError):
    """The table says too little of a run, or something that no cost model answers for; the message is the reason."""


@contextmanager
def of_one_row() -> Iterator[None]:
    """Raise NotPredictedError for whatever is raised of one row: the reason of that row alone, which so ends no table."""
    try:
        yield
    except NotPredictedError:
        raise
    except InvalidInputError as error:
        given = "" if error.given is None else f" ({error.given})"
        raise NotPredictedError(f"{error.problem}{given}") from error
    except MemoryError as error:
        raise NotPredictedError("its prediction needs more memory than there is") from error
    except Exception as error:  # A fault of ours in one row must not cost the others their predictions.
        raise NotPredictedError(f"internal error, please report it with the row: {type(error).__name__}: {error}") from error


def read_header(path: Path) -> tuple[str, ...]:
    """Names of the columns of a table; raises InvalidInputError for a file that is none."""
    return tuple(next(_lines(path), []))


def read_table(path: Path, columns: tuple[str, ...], *, what: str, optional: tuple[str, ...] | None = None) -> Iterator[Cells]:
    """The lines of a table that has each of the columns once, in any order.

    With ``optional`` columns, cells of those that are not there are empty, and columns of other names are not looked at.
    Raises InvalidInputError that says what of the header or which line can't be used.
    """
    lines = _lines(path)
    header = next(lines, [])
    absent = {} if optional is None else dict.fromkeys(optional, "")
    missing = sorted(set(columns) - set(header))
    unknown = sorted(set(header) - set(columns)) if optional is None else []
    if missing or unknown or len(set(header)) < len(header):
        raise InvalidInputError(
            f"the table does not have the columns of {what}",
            given=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
            allowed=f"each of {', '.join(columns)} once",
        )
    for number, values in enumerate(lines, start=2):
        if not values:
            continue
        if len(values) != len(header):
            raise InvalidInputError(f"line {number} has {len(values)} values", allowed=f"{len(header)}, one for each column")
        yield Cells(number, absent | dict(zip(header, values, strict=True)))


def _lines(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.reader(file, strict=True)
    except OSError as error:
        raise InvalidInputError(f"the file can't be read: {error.strerror}", given=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInputError("the file is not a table in UTF-8", given=str(path)) from None
    except ValueError as error:  # a path that no system has
        raise InvalidInputError(f"the file can't be read: {error}", given=repr(str(path))) from None
    except csv.Error as error:
        raise InvalidInputError(f"the file is not a CSV table: {error}", given=str(path)) from None


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one line, read as what they must be."""

    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell as it stands, outer blanks removed."""
        return self.values[column].strip()

    def required_text(self, column: str) -> str:
        """A cell that may not be empty."""
        return self.text(column) or self.refuse(column, "a text")

    def one_of(self, column: str, allowed: tuple[str, ...]) -> str:
        """One of a few words."""
        return self.text(column) if self.text(column) in allowed else self.refuse(column, ", ".join(allowed))

    def number(self, column: str) -> float | None:
        """A positive number, or None for an empty cell."""
        value = self._float(column, "a positive number, or nothing")
        return value if value is None or value > 0 else self.refuse(column, "a positive number, or nothing")

    def size(self, column: str) -> int | None:
        """A positive integer (4.0 is one), or None for an empty cell."""
        return self._integer(column, least=1)

    def count(self, column: str) -> int | None:
        """An integer from 0, or None for an empty cell."""
        return self._integer(column, least=0)

    def _integer(self, column: str, *, least: int) -> int | None:
        allowed = f"an integer from {least}, or nothing"
        value = self._float(column, allowed)
        if value is None or (value >= least and value == int(value)):
            return None if value is None else int(value)
        return self.refuse(column, allowed)

    def _float(self, column: str, allowed: str) -> float | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            return self.refuse(column, allowed)
        return value if math.isfinite(value) else self.refuse(column, allowed)

    def refuse(self, column: str, allowed: str) -> Never:
        """Raise InvalidInputError that names the line, the column and what is allowed there."""
        raise InvalidInputError(f"line {self.line}, column {column}", given=self.text(column), allowed=allowed)


# The columns of a table of measured training runs.

RUN_COLUMNS = (
    "source_id",
    "source",
    "model",
    "n_layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "n_experts",
    "top_k",
    "params_b",
    "gpu",
    "gpu_mem_gb",
    "peak_tflops_bf16",
    "n_gpus",
    "gpus_per_node",
    "intra_node_bw",
    "inter_node_bw",
    "precision",
    "seq_len",
    "micro_batch",
    "global_batch",
    "dp",
    "zero_stage_or_fsdp",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "recompute",
    "schedule",
    "flash_attention",
    "notes",
    "quality",
    "arch",
    "group",
    "licence",
)
"""Columns of what was run."""

RESULT_COLUMNS = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "peak_mem_gb",
    "status",
)
"""Columns of what came of it. No prediction sees them."""

COLUMNS = (*RUN_COLUMNS, *RESULT_COLUMNS)

ETP = "etp"
"""Ranks that share an expert. Tables do not have this column; a mapping may state it."""

CP_COMM_TYPE = "cp_comm_type"
"""How the ranks of a sequence attend, in Megatron-Core's words: p2p, a2a or all_gather. A mapping may state it, as ETP."""

_IN_TABLES = tuple(name for name in RUN_COLUMNS if name not in ("source_id", "quality", "group", "licence"))

STATED_COLUMNS = (*_IN_TABLES, ETP, CP_COMM_TYPE)
"""Columns that a mapping may fill where a row leaves them empty."""
