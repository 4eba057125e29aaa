"""Files that a serving workload names: a trace of requests, and token counts."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from meshwright.app.base.digits import is_digits
from meshwright.app.base.errors import at_field
from meshwright.app.models.checkpoint import COMPUTES_IN, CheckpointFormat, checkpoint_format
from meshwright.app.requests.document import DocumentFile, LengthFile, ServingSource, TraceFile, TraceTimes, TrainingSource
from meshwright.app.requests.limits import MAX_TRACE
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.model.documents import MAX_LENGTHS, DocumentLengths, Fill
from meshwright.costmodels.model.formats import FormatWord, WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import Arrivals, Length, ServingWorkload, TrainingWorkload
from meshwright.solver.problem.serving_load import EmpiricalLength, TraceArrivals

TRACE_COLUMNS = ("time", "prompt", "output")
CACHED_COLUMN = "cached"
_LENGTHS_SEED = 0
"""Seed under which the lengths of a trace of times alone are drawn."""
UNQUANTISED = DType.BF16
"""The precision of a serving workload that names none, of a model whose checkpoint is not quantised."""


class TextFiles(Protocol):
    """The reader of a file of text that a request names."""

    def read_text(self, path: str) -> str:
        """The text of the file at a path; raises InvalidInputError."""
        ...


def serving_workload(
    source: ServingSource, files: TextFiles, config: Mapping[str, Any] | None = None, devices: Iterable[Device] = ()
) -> ServingWorkload:
    """The workload with its files read; raises InvalidInputError, its faults at their fields.

    Precision, weights and what is quantised are those of the checkpoint that the model's ``config`` describes, as engines load
    it, unless the workload contradicts them; ``devices`` have to compute in them.
    """
    given = {field.name: getattr(source, field.name) for field in dataclasses.fields(ServingWorkload)}
    if isinstance(source.arrivals, TraceTimes):
        lengths = [_length(name, getattr(source, name), files) for name in ("prompt_tokens", "output_tokens")]
        given |= {"arrivals": _with_lengths(source.arrivals, *lengths), "prompt_tokens": None, "output_tokens": None}
        return ServingWorkload(**given | _formats(source, config, devices))
    given |= {
        "arrivals": _arrivals(source.arrivals, files),
        "prompt_tokens": _length("prompt_tokens", source.prompt_tokens, files),
        "output_tokens": _length("output_tokens", source.output_tokens, files),
    }
    return ServingWorkload(**given | _formats(source, config, devices))


def _with_lengths(source: TraceTimes, prompt: Length | None, output: Length | None) -> TraceArrivals:
    """Return the trace of requests at these times, whose lengths are drawn once: a plan holds those that it was made for."""
    if prompt is None or output is None:
        raise WorkloadError(
            "a trace of times alone needs lengths to draw from",
            given={"prompt_tokens": prompt, "output_tokens": output},
            allowed="prompt_tokens and output_tokens of the workload, or of each request of the trace",
        )
    # Distributions load scipy, which only such a trace needs.
    from meshwright.solver.problem.token_counts import token_count

    _require_few(len(source.times_s))
    positions = np.random.Generator(np.random.PCG64(_LENGTHS_SEED)).random((2, len(source.times_s)))
    prompts, outputs = (
        tuple(token_count(length).sample(np.maximum(at, np.finfo(np.float64).tiny)).tolist())
        for length, at in zip((prompt, output), positions, strict=True)
    )
    return TraceArrivals("trace", source.times_s, prompts, outputs)


def _formats(source: ServingSource, config: Mapping[str, Any] | None, devices: Iterable[Device]) -> dict[str, Any]:
    """Return precision, weights and what is quantised: as the checkpoint has them, unless the workload says otherwise."""
    devices = tuple(devices)
    word = source.precision
    precision = None if word is None else word.precision
    weights = _weights_of(word, source.weights)
    own = _own_format(config, is_needed=(precision, weights, source.quantised) == (None, None, None))
    if own is not None and own.is_meant_by(precision, weights):
        try:
            formats = loaded_formats(own, devices)
        except InvalidInputError as error:
            raise at_field(error, "precision") from None
        given = {"precision": precision, "quantised": source.quantised}
        return formats | {name: value for name, value in given.items() if value is not None}
    computed = UNQUANTISED if weights is None else COMPUTES_IN[weights]
    return {
        "precision": precision or (_working(devices) if computed is UNQUANTISED else computed),
        "weights": weights,
        "quantised": source.quantised or Quantised.PROJECTIONS,
    }


def _weights_of(word: FormatWord | None, weights: WeightFormat | None) -> WeightFormat | None:
    """Return the storage format of weights that a workload says, in either field; raises where it says two."""
    said = None if word is None else word.weights
    if said is not None and weights not in (None, said):
        raise at_field(
            WorkloadError(
                "precision and weights name two formats",
                given={"precision": said.value, "weights": str(weights)},
                remedy="leave out one of them",
            ),
            "weights",
        )
    return weights or said


def _own_format(config: Mapping[str, Any] | None, *, is_needed: bool) -> CheckpointFormat | None:
    """Return the format of the checkpoint of a config, None where it says none; raises for a kind that is not known, or
    returns None where a workload says the format itself."""
    try:
        return None if config is None else checkpoint_format(config)
    except InvalidInputError as error:
        if is_needed:
            raise at_field(error, "precision") from None
        return None


def loaded_formats(stored: CheckpointFormat | None, devices: Iterable[Device]) -> dict[str, Any]:
    """Return precision, weights and what is quantised of a checkpoint as engines load it on these devices; None: nothing is.

    Raises WorkloadError for a format that a device can't compute in.
    """
    devices = tuple(devices)
    working = _working(devices)
    if stored is None:
        return {"precision": working, "weights": None, "quantised": Quantised.PROJECTIONS}
    _require_units(stored, devices)
    precision = working if stored.precision is UNQUANTISED else stored.precision
    return {"precision": precision, "weights": stored.weights, "quantised": stored.quantised}


def _working(devices: Iterable[Device]) -> DType:
    """Devices before Ampere have no bf16: engines fall back to fp16 by themselves (vLLM, --dtype auto)."""
    return UNQUANTISED if all(UNQUANTISED in device.peak_flops for device in devices) else DType.FP16


def _require_units(stored: CheckpointFormat, devices: Iterable[Device]) -> None:
    for device in devices:
        if stored.weights.computed_in(device) not in device.peak_flops:
            raise WorkloadError(
                f"the model's checkpoint stores weights in a format that {device.name} has no matrix unit for",
                given=f"{stored.weights.value} (quantization_config)",
                allowed=", ".join(sorted(dtype.value for dtype in device.peak_flops)),
                remedy=f"say 'precision: {UNQUANTISED.value}' (--precision {UNQUANTISED.value}) to serve the weights widened",
            )


def _arrivals(source: Arrivals | TraceFile, files: TextFiles) -> Arrivals:
    if not isinstance(source, TraceFile):
        return source
    try:
        return read_trace(files.read_text(source.file))
    except InvalidInputError as error:
        raise at_field(error, "arrivals.file") from None


def _length(name: str, source: Length | LengthFile | None, files: TextFiles) -> Length | None:
    if not isinstance(source, LengthFile):
        return source
    try:
        return read_counts(files.read_text(source.file))
    except InvalidInputError as error:
        raise at_field(error, f"{name}.file") from None


def read_trace(text: str) -> TraceArrivals:
    """A trace of columns time (seconds), prompt and output (tokens), and maybe cached, those of the prompt that were in
    the prefix cache; raises WorkloadError that names the line."""
    lines = _lines(text)
    number, header = next(lines, (1, []))
    columns = [name.strip().lower() for name in header]
    names = (*TRACE_COLUMNS, CACHED_COLUMN) if CACHED_COLUMN in columns else TRACE_COLUMNS
    if sorted(columns) != sorted(names):
        allowed = f"{', '.join(TRACE_COLUMNS)}; and {CACHED_COLUMN}, if prompts hit the prefix cache"
        raise WorkloadError("the trace does not have its columns", given=header, allowed=allowed)
    place = [columns.index(name) for name in names]
    times, prompts, outputs, cached = [], [], [], []
    for number, cells in lines:
        if len(cells) != len(columns):
            raise WorkloadError(f"line {number} of the trace has {len(cells)} values", allowed=f"{len(columns)}")
        times.append(_time(number, cells[place[0]]))
        prompts.append(_count(number, cells[place[1]]))
        outputs.append(_count(number, cells[place[2]]))
        cached += [_count(number, cells[at], least=0) for at in place[3:]]
    _require_few(len(times))
    if len(times) < 2:
        raise WorkloadError("a trace needs two requests or more", given=len(times))
    return TraceArrivals("trace", tuple(times), tuple(prompts), tuple(outputs), tuple(cached))


def read_counts(text: str) -> EmpiricalLength:
    """Token counts, one a line; raises WorkloadError that names the line."""
    counts = tuple(_count(number, cells[0]) for number, cells in _lines(text))
    _require_few(len(counts))
    if not counts:
        raise WorkloadError("the file has no token counts", given="nothing", allowed="one count a line")
    return EmpiricalLength(counts)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Numbered lines of a CSV text that are not empty."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise WorkloadError(f"line {reader.line_num} is not CSV: {error}") from None


def _time(line: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1e18:
        raise WorkloadError(f"line {line}: no time", given=cell, allowed="seconds from 0")
    return value


def _count(line: int, cell: str, *, least: int = 1) -> int:
    text = cell.strip()
    if not (is_digits(text, most=17) and int(text) >= least):
        raise WorkloadError(f"line {line}: no token count", given=cell, allowed=f"a whole number from {least}")
    return int(text)


def _require_few(count: int) -> None:
    if count > MAX_TRACE:
        raise WorkloadError("too many lines", given=count, allowed=f"at most {MAX_TRACE}")


# Lengths of documents in a file that a training workload names, as a histogram.

_STEPS = 32
"""Steps of a doubling in which many lengths are counted together: 864 up to the longest that a request may have."""


def training_workload(source: TrainingSource, files: TextFiles) -> TrainingWorkload:
    """Return the workload, lengths of documents read from their file if they stand in one; raises WorkloadError."""
    given = {each.name: getattr(source, each.name) for each in fields(TrainingWorkload)}
    if isinstance(source.lengths, DocumentFile):
        try:
            text = files.read_text(source.lengths.file)
            given["lengths"] = histogram(document_lengths(text, source.lengths.field), source.lengths.fill)
        except InvalidInputError as error:
            raise at_field(error, "lengths.file") from None
    return TrainingWorkload(**given)


def document_lengths(text: str, field: str) -> list[int]:
    """Return the tokens of each document of a file, one a line; raises WorkloadError that names the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            value = _length_in(line.strip(), field, number)
            tokens = len(value) if isinstance(value, list) else value
            if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
                raise WorkloadError(
                    f"line {number} has no length of a document", given=line[:80], allowed="whole numbers above 0"
                )
            found.append(tokens)
    if not found:
        raise WorkloadError("the file has no lengths of documents", allowed="one a line")
    return found


def _length_in(line: str, field: str, number: int) -> object:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None if isinstance(value, list) else value
    if field not in value:
        raise WorkloadError(
            f"line {number} has no field {field!r}", given=", ".join(map(str, value))[:80], remedy="name it: lengths.field"
        )
    return value[field]


def histogram(tokens: Sequence[int], fill: Fill) -> DocumentLengths:
    """Return the histogram of documents of so many tokens: each length where there are few, else steps of a 32nd of a
    doubling, by their mean.

    That leaves a sum of squares 4e-5 short at most: a step is 2.2% wide, and its variance a 12th of its square.
    """
    counted = Counter(tokens)
    if len(counted) > MAX_LENGTHS:
        steps: dict[int, list[int]] = {}
        for length, count in counted.items():
            step = steps.setdefault(math.floor(_STEPS * math.log2(length)), [0, 0])
            step[0] += count
            step[1] += count * length
        counted = Counter()
        for count, total in steps.values():
            counted[round(total / count)] += count
    lengths = sorted(counted)
    return DocumentLengths(tuple(lengths), tuple(counted[length] for length in lengths), fill)
