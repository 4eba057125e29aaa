"""Lengths of documents in files, and as histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.requests.workloads import document_lengths, histogram
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.model.documents import MAX_LENGTHS, DocumentLengths, Fill
from meshwright.solver.problem.request import TrainingRequest


def asked(lengths: dict[str, Any]) -> dict[str, Any]:
    """A request document."""
    return {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"catalog": "dgx-h100", "nodes": 1},
        "workload": {"kind": "training", "global_batch": 64, "seq_len": 8192, "lengths": lengths},
        "search": {"launcher": "trl"},
    }


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("5\n7\n\n5\n", "length"),
        ('{"length": 5}\n{"length": 7, "text": "x"}\n{"length": 5}', "length"),
        ('{"input_ids": [1, 2, 3, 4, 5]}\n{"input_ids": [1, 2, 3, 4, 5, 6, 7]}\n{"input_ids": [0, 0, 0, 0, 0]}', "input_ids"),
    ],
)
def test_files_have_a_document_a_line(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "lengths.txt").write_text(text)
    request = resolve_request(asked({"file": "lengths.txt", "field": field}), files=FilesBeside(tmp_path))
    assert isinstance(request, TrainingRequest)
    assert request.workload.lengths == DocumentLengths((5, 7), (2, 1))


def test_histograms_are_read_as_they_are_written() -> None:
    request = resolve_request(asked({"tokens": [5, 7], "counts": [2, 1], "fill": "padded"}), files=NoFiles())
    assert isinstance(request, TrainingRequest)
    assert request.workload.lengths == DocumentLengths((5, 7), (2, 1), Fill.PADDED)
    assert request.workload.documents is None


@pytest.mark.parametrize(
    "text", ["", "5\nx\n", "5.5", "0", "-3", "true", '{"tokens": 5}', '{"length": "5"}', "[1, 2]", '{"length": []}']
)
def test_lines_without_a_length_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        document_lengths(text, "length")


def test_the_service_reads_no_files() -> None:
    with pytest.raises(InvalidInputError, match="file"):
        resolve_request(asked({"file": "/etc/passwd"}), files=NoFiles())


@pytest.mark.parametrize("lengths", [{"tokens": [5]}, {"tokens": [7, 5], "counts": [1, 1]}, {"tokens": [10**9], "counts": [1]}])
def test_faulty_histograms_are_refused_in_a_request(lengths: dict[str, Any]) -> None:
    with pytest.raises((DocumentError, WorkloadError)):
        resolve_request(asked(lengths), files=NoFiles())


def test_many_lengths_are_counted_in_steps_that_keep_their_moments() -> None:
    drawn = np.random.default_rng(5).lognormal(7.0, 1.5, size=50_000).astype(int) + 1
    found = histogram(drawn.tolist(), Fill.PACKED)
    assert len(set(drawn.tolist())) > MAX_LENGTHS >= len(found.tokens)
    assert sum(found.counts) == 50_000
    tokens, counts = (np.array(each, np.float64) for each in (found.tokens, found.counts))
    assert (tokens * counts).sum() == pytest.approx(drawn.sum(), rel=1e-4)
    assert (tokens**2 * counts).sum() == pytest.approx((drawn.astype(float) ** 2).sum(), rel=2e-4)
