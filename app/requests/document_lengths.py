"""Lengths of documents in a file that a training workload names, as a histogram."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from meshwright.app.errors import at_field
from meshwright.app.requests.document import DocumentFile, TrainingSource
from meshwright.app.requests.workloads import TextFiles
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.model.documents import MAX_LENGTHS, DocumentLengths, Fill
from meshwright.solver.problem.request import TrainingWorkload

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
