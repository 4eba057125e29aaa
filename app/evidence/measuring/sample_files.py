"""Files of measured times: CSV (also .csv.gz) and Parquet, the columns of ``costmodels.fitting.samples.Samples``."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from meshwright.app.base.documents import read_bounded
from meshwright.app.base.errors import MissingExtraError
from meshwright.app.base.output_files import write_output
from meshwright.costmodels.fitting.samples import COLUMNS, TEXT_COLUMNS, SampleError, Samples, check_samples, samples_of

REQUIRED_COLUMNS = ("device", "kind", "dtype", "time_s")
PARQUET = ".parquet"
MAX_ROWS = 5_000_000
FORMULA_MARKS = ("=", "+", "-", "@")
"""Spreadsheets run what begins so (OWASP, CSV injection), and what is read here is written to files that people open."""
MAX_CSV_BYTES = 2**29
"""Longest text read, after decompression: a hundred bytes a row."""


def read_samples(path: Path) -> Samples:
    """The measurements in a file; raises SampleError, or MissingExtraError for Parquet without pyarrow."""
    try:
        if path.suffix == PARQUET:
            return _read_parquet(path)
        with _open_text(path) as file:
            return samples_of(_rows(csv.DictReader(file)))
    except SampleError as error:
        raise SampleError(f"{path}: {error.problem}", given=error.given, allowed=error.allowed, remedy=error.remedy) from None
    except (OSError, EOFError, UnicodeError, csv.Error, ValueError) as error:
        raise SampleError(f"{path} can't be read: {error}", remedy="give a CSV or Parquet file of measurements") from None


def write_samples(path: Path, samples: Samples) -> None:
    """Write measurements, whole or not at all: Parquet by the ending .parquet, else CSV, packed by the ending .gz.

    Raises PlanFileError.
    """
    if path.suffix == PARQUET:
        data = _parquet_bytes(samples)
    else:
        data = _csv_text(samples).encode()
        # No time stamp: the same measurements give the same file.
        data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    write_output(path, data, what="measurements")


def samples_digest(samples: Samples) -> str:
    """``sha256:<hex>`` over the measurements as CSV: the same for the same rows, from whatever file."""
    return f"sha256:{hashlib.sha256(_csv_text(samples).encode()).hexdigest()}"


def _open_text(path: Path) -> IO[str]:
    if path.suffix != ".gz":
        return path.open(encoding="utf-8", newline="")
    with path.open("rb") as file:
        content = read_bounded(file, limit=MAX_CSV_BYTES, what="file of measurements")
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


def _csv_text(samples: Samples) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(samples.rows())
    return text.getvalue()


def _rows(reader: csv.DictReader[str]) -> list[dict[str, Any]]:
    _check_columns(reader.fieldnames or ())
    found: list[dict[str, Any]] = []
    for row in reader:
        if None in row or None in row.values():
            raise SampleError(f"line {reader.line_num} has not as many fields as the head line")
        values: dict[str, Any] = {
            name: _text(row[name], f"line {reader.line_num}: {name}") for name in TEXT_COLUMNS if name in row
        }
        for name in COLUMNS:
            if name not in TEXT_COLUMNS and row.get(name):
                values[name] = _number(row[name], f"line {reader.line_num}: {name}")
        found.append(values)
        if len(found) > MAX_ROWS:
            raise SampleError("too many rows", allowed=f"at most {MAX_ROWS:,}")
    return found


def _text(text: str, where: str) -> str:
    """Return a text of a row; raises SampleError for one that a spreadsheet would take for a formula."""
    if text.startswith(FORMULA_MARKS):
        allowed = f"a name that does not begin with one of {' '.join(FORMULA_MARKS)}"
        raise SampleError(f"{where} is a formula to a spreadsheet", given=text, allowed=allowed)
    return text


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SampleError(f"{where} is no number", given=text) from None


def _check_columns(names: Iterable[str]) -> None:
    given = list(names)
    unknown = [name for name in given if name not in COLUMNS]
    missing = [name for name in REQUIRED_COLUMNS if name not in given]
    if unknown or missing:
        raise SampleError(
            f"the columns are not those of measurements: unknown {unknown or 'none'}, missing {missing or 'none'}",
            allowed=", ".join(COLUMNS),
        )


def _read_parquet(path: Path) -> Samples:
    parquet = _pyarrow()
    # Before anything is unpacked: a few bytes can stand for a column of millions.
    promised = parquet.read_metadata(path)
    if not 0 < promised.num_rows <= MAX_ROWS:
        raise SampleError("no usable number of rows", given=promised.num_rows, allowed=f"1 to {MAX_ROWS:,}")
    table = parquet.read_table(path)
    _check_columns(table.column_names)
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        present = name in table.column_names
        if name in TEXT_COLUMNS:
            values = table.column(name).to_pylist() if present else [""] * table.num_rows
            columns[name] = np.array([str(value or "") for value in values], np.str_)
        else:
            values = table.column(name).to_pylist() if present else [0.0] * table.num_rows
            columns[name] = np.array([float(value or 0.0) for value in values], np.float64)
    samples = Samples(**columns)
    check_samples(samples)
    return samples


def _parquet_bytes(samples: Samples) -> bytes:
    parquet = _pyarrow()
    from pyarrow import table

    file = io.BytesIO()
    parquet.write_table(table({name: getattr(samples, name).tolist() for name in COLUMNS}), file)
    return file.getvalue()


def _pyarrow() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("Parquet files", package="pyarrow", extra="import") from None
    return parquet
