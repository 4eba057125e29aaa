"""Logs and results of programs beside the first ones, each as its program writes it, of one training and one serving plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.evidence.logs.table import READERS, run_of_log
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support.observed import answered
from tests.support.requests_given import resolved, serving
from tests.unit.app.runs.log_formats import LOGS, PLAN, SERVED, TRAINED_BY_OTHERS, served_by
from tests.unit.solver.verify.plans import serving_plan


@pytest.mark.parametrize("name", TRAINED_BY_OTHERS)
def test_the_figures_of_a_training_log(name: str) -> None:
    writer, step_time_s, peak_memory_bytes = TRAINED_BY_OTHERS[name]
    for named in (None, writer):
        run = run_of_log(LOGS / name, answered(), plan=PLAN, writer=named)
        assert run.step_time_s == pytest.approx(step_time_s, rel=1e-9)
        assert run.peak_memory_bytes == peak_memory_bytes


@pytest.mark.parametrize("name", SERVED)
def test_the_figures_of_a_serving_benchmark(name: str) -> None:
    writer, figures = SERVED[name]
    for named in (None, writer):
        assert run_of_log(LOGS / name, served_by(name), plan=PLAN, writer=named).measured() == pytest.approx(figures)
    with pytest.raises(InvalidInputError, match="serving benchmark"):
        run_of_log(LOGS / name, answered(), plan=PLAN)


@pytest.mark.parametrize("name", [*TRAINED_BY_OTHERS, *SERVED])
def test_a_log_is_known_as_that_of_its_writer(name: str) -> None:
    writer = TRAINED_BY_OTHERS[name][0] if name in TRAINED_BY_OTHERS else SERVED[name][0]
    lines = (LOGS / name).read_text().splitlines()
    assert [each for each in LogWriter if READERS[each](lines).has_times] == [writer]


def test_steps_of_a_batch_that_grows_are_those_of_the_last() -> None:
    line = " iteration {:8}/ 100 | elapsed time per iteration (ms): {} | global batch size: {:5} | lm loss: 1.0E+01 |"
    lines = [line.format(*step) for step in ((1, 9000.0, 64), (2, 3600.0, 64), (3, 7200.0, 128), (4, 7100.0, 128))]
    logged = READERS[LogWriter.MEGATRON_LM](lines)
    assert list(logged.step_times_s) == pytest.approx([7.2, 7.1])
    assert logged.stated.global_batch is not None and logged.stated.global_batch.value == 128


UNREAD = {
    "a rate that is none": "SamplesPerSec=nan, MemAllocated=6.01GB, MaxMemAllocated=19.52GB",
    "a rate of tokens with a loss": "{'memory/max_active (GiB)': '24.1', 'tokens/train_per_sec_per_gpu': '911.2'}",
    "whole seconds that are too few": '{"current_steps": 10, "total_steps": 10, "elapsed_time": "0:00:07", "total_tokens": 1}',
}


@pytest.mark.parametrize("line", UNREAD.values(), ids=UNREAD)
def test_memory_is_not_kept_where_the_speed_can_not_be_read(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line)
    with pytest.raises(InvalidInputError, match="speed can't be read"):
        run_of_log(path, answered(), plan=PLAN)


def test_tokens_of_each_device_are_a_rate_of_all() -> None:
    line = "{'loss': 2.1, 'memory/max_active (GiB)': 24.1, 'tokens_per_second_per_gpu': 7184.0, 'epoch': 0.5}"
    logged = READERS[LogWriter.HF_TRAINER]([line, line])
    assert list(logged.tokens_per_s_per_device) == [7184.0, 7184.0]
    assert logged.peak_memory_bytes == round(24.1 * GIB)


def test_a_sweep_is_read_at_the_load_of_the_plan() -> None:
    document = serving()
    document["workload"]["arrivals"]["requests_per_s"] = 4.0
    run = run_of_log(LOGS / "guidellm.json", AnsweredRequest(serving_plan(), resolved(document)), plan=PLAN)
    assert run.tokens_per_s == pytest.approx(1182.0)
    document["workload"]["arrivals"]["requests_per_s"] = 3.0
    with pytest.raises(InvalidInputError, match="0 results of the file are of the plan's workload"):
        run_of_log(LOGS / "guidellm.json", AnsweredRequest(serving_plan(), resolved(document)), plan=PLAN)


def test_a_result_may_be_larger_than_other_documents() -> None:
    """GuideLLM writes the text of each request into its file."""
    text = (LOGS / "guidellm.json").read_text().replace('"metadata": {', '"metadata": {"text": "' + "x" * 9 * 2**20 + '", ', 1)
    assert READERS[LogWriter.GUIDELLM](text.splitlines()).figures["tokens_per_s"] == pytest.approx(2730.0)
