"""A checkpoint's own format is the format, whatever word of it a request or a measured row says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.deployment import Deployment, deployment, stored_format
from meshwright.app.evidence.serving.replay import simulated_engine
from meshwright.app.models.catalog import model_names
from meshwright.app.models.catalog.huggingface_ids import CATALOGUE_NAMES, OTHER_FORMATS
from meshwright.app.models.checkpoint import CheckpointFormat
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.formats import FormatWord, WeightFormat
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import ServingWorkload
from tests.support.requests_given import resolved, serving
from tests.unit.app.validation.serving.tables import point

WORDS = {
    WeightFormat.FP8: ("fp8",),
    WeightFormat.FP8_BLOCK: ("fp8", "fp8_block"),
    WeightFormat.NVFP4: ("fp4", "nvfp4"),
    WeightFormat.MXFP4: ("fp4", "mxfp4"),
    WeightFormat.INT8: ("int8", "bf16", "bfloat16"),
    WeightFormat.INT4: ("int4", "bf16", "bfloat16"),
}
"""What people say of a checkpoint whose weights are stored so, and mean it as it is."""


def _stated() -> dict[str, CheckpointFormat]:
    """Every name and id of the catalogue, and copies of its models by other makers, that has a format of its own."""
    copies = ("nvidia/Qwen3-235B-A22B-FP8", "nvidia/DeepSeek-R1-NVFP4", "casperhansen/llama-3.1-8b-instruct-awq")
    formats = {}
    for text in (*model_names(), *CATALOGUE_NAMES, *OTHER_FORMATS, *copies):
        found = stored_format(text, CATALOGUE_NAMES.get(text, text)) or (_of_copy(text) if text in copies else None)
        if found is not None:
            formats[text] = found
    return formats


def _of_copy(text: str) -> CheckpointFormat | None:
    from meshwright.app.models.catalog.copies import copy_of

    copy = copy_of(text)
    return None if copy is None else stored_format(text, copy.name)


STATED = _stated()


def _workload(model: str, **said: str | None) -> ServingWorkload:
    source = {"catalog": model} if model in model_names() else {"huggingface": model}
    work = {"kind": "serving", "arrivals": {"process": "closed", "concurrency": 8}}
    lengths = {"prompt_tokens": {"fixed": 1024}, "output_tokens": {"fixed": 1024}}
    found = resolved(serving(model=source, cluster="8xH200", workload=work | lengths | said)).workload
    assert isinstance(found, ServingWorkload)
    return found


def test_the_catalogue_has_checkpoints_of_every_format() -> None:
    assert {each.weights for each in STATED.values()} >= set(WORDS) - {WeightFormat.INT8}
    assert {"Qwen/Qwen3-235B-A22B-FP8", "deepseek-v3", "minimax-m2.5", "moonshotai/Kimi-K2.5"} <= set(STATED)


@pytest.mark.parametrize("model", sorted(STATED))
def test_every_word_for_a_checkpoints_format_gets_one_answer(model: str) -> None:
    own = STATED[model]
    plain = _workload(model)
    assert (plain.precision, plain.weights, plain.quantised) == (own.precision, own.weights, own.quantised)
    for word in WORDS[own.weights]:
        assert _workload(model, precision=word) == plain
    assert _workload(model, weights=own.weights.value) == plain
    written_out = {"precision": own.precision.value, "weights": own.weights.value, "quantised": own.quantised.value}
    for count in range(4):
        for names in itertools.combinations(written_out, count):
            assert _workload(model, **{name: written_out[name] for name in names}) == plain


@pytest.mark.parametrize("model", sorted(STATED))
def test_measured_rows_mean_the_same_format(tmp_path: Path, model: str) -> None:
    own = STATED[model]
    for word in ("", *WORDS[own.weights]):
        found = deployment(point(tmp_path, model=model, precision=word, gpu="H200", n_gpus="8", tp="8").run)
        assert (found.precision, found.stored) == (own.precision, own)


@pytest.mark.parametrize("word", FormatWord)
def test_each_word_stands_for_one_format_of_a_checkpoint_in_16_bits(tmp_path: Path, word: FormatWord) -> None:
    planned = _workload("llama-3.1-8b", precision=word.value)
    assert planned.weight_format is (word.weights or planned.weight_format)
    measured = _in(deployment(point(tmp_path, precision=word.value, gpu="H200").run))
    assert (measured.precision, measured.weights) == (planned.precision, planned.weight_format)


def _in(found: Deployment) -> CheckpointFormat:
    """The format that a row's engine is simulated in."""
    precision = simulated_engine(found).precision
    return CheckpointFormat(found.precision, precision.weights, precision.quantised)


def test_another_format_is_that_which_is_said() -> None:
    wide = _workload("deepseek-v3", precision="bf16")
    assert (wide.precision, wide.weight_format) == (DType.BF16, WeightFormat.BF16)
    a_matrix = _workload("deepseek-v3", weights="fp8")
    assert (a_matrix.precision, a_matrix.weight_format) == (DType.FP8, WeightFormat.FP8)


def test_two_formats_are_refused() -> None:
    work = {"kind": "serving", "arrivals": {"process": "closed", "concurrency": 8}, "precision": "nvfp4", "weights": "mxfp4"}
    lengths = {"prompt_tokens": {"fixed": 1024}, "output_tokens": {"fixed": 1024}}
    with pytest.raises(InvalidInputError, match="two formats"):
        resolve_request(serving(workload=work | lengths), files=NoFiles())
