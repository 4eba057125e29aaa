"""The deployment of a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.validation.serving.deployment import Workers, deployment
from meshwright.app.validation.serving.recipes import EngineName
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.units import DType
from tests.unit.app.validation.serving.tables import point


def test_a_row_that_says_all(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, engine="trtllm(pytorch)", tp="2", n_gpus="8").run)
    assert found.engine is EngineName.TENSORRT_LLM
    assert found.decode == Workers(count=4, tp=2, pp=1, ep=1, attention_dp=1)
    assert (found.model, found.node, found.clients, found.prefill) == ("llama-3.1-8b", "dgx-h100", 8, None)


@pytest.mark.parametrize(
    ("engine", "note", "kv_dtype", "shortest"),
    [
        ("trtllm", "", DType.FP8, 1.0),
        ("vllm", "", DType.BF16, 1.0),
        ("vllm", "source_file=2026-03-25.csv", DType.FP8, 0.8),
        ("sglang", "db-dump/2026-04-27", DType.BF16, 0.8),
    ],
)
def test_what_a_source_leaves_unsaid(tmp_path: Path, engine: str, note: str, kv_dtype: DType, shortest: float) -> None:
    found = deployment(point(tmp_path, engine=engine, note=note).run)
    assert (found.kv_dtype, found.shortest) == (kv_dtype, shortest)


def test_workers_of_each_phase(tmp_path: Path) -> None:
    degrees = {"tp": "P1x8/D9x4", "dp_attn": "P1/D2", "ep": "P8/D0"}
    found = deployment(point(tmp_path, mode="disagg", **degrees).run)
    assert found.prefill == Workers(count=1, tp=8, pp=1, ep=8, attention_dp=1)
    assert found.decode == Workers(count=9, tp=4, pp=1, ep=1, attention_dp=2)


def test_degrees_that_one_server_can_not_have_are_products(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, tp="64", ep="8", n_gpus="64", note="db-dump/2026-04-27").run)
    assert found.decode == Workers(count=1, tp=8, pp=1, ep=8, attention_dp=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "nobody's"}, "model not in the catalogue: nobody's"),
        ({"gpu": "abacus"}, "GPU not in the catalogue: abacus"),
        ({"engine": "none"}, "engine without a profile: none"),
        ({"precision": "fp7"}, "unknown precision: fp7"),
        ({"isl": ""}, "the row does not state its lengths"),
        ({"concurrency": ""}, "the row does not state its concurrency"),
        ({"concurrency": "nan"}, "the row does not state its concurrency"),
        ({"mode": "disagg", "tp": "8"}, "the row does not state the workers of each phase"),
    ],
)
def test_rows_that_say_too_little(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(NotPredictedError, match=reason):
        deployment(point(tmp_path, **changes).run)
