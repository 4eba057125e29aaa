"""Logs of every writer, as figures of a run."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from meshwright.app.errors import DocumentError
from meshwright.app.runs.document import FIGURES_OF, MeasuredRun, RunOutcome, figure_names, read_run, run_digest, run_document
from meshwright.app.runs.logs.table import READERS, run_of_log
from meshwright.app.runs.logs.writers import LogWriter
from meshwright.app.runs.service import observation
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from tests.support.observed import answered

LOGS = Path(__file__).parents[3] / "support" / "logs"
PLAN = "sha256:" + "0" * 64

# The plan trains on 128 sequences of 8,192 tokens a step, on 8 devices. First lines are warm-up.
TRAINED = {
    "megatron_lm.log": (LogWriter.MEGATRON_LM, 7.1, 54784 * 2**20),
    "torchtitan.log": (LogWriter.TORCHTITAN, 128 * 8192 / (7184.0 * 8), round(47.59 * GIB)),
    "deepspeed.log": (LogWriter.DEEPSPEED, 128 / 18.0, round(19.52 * GIB)),
    "deepspeed_pipeline.log": (LogWriter.DEEPSPEED, 7.1, None),
    "hf_trainer.log": (LogWriter.HF_TRAINER, 128 / 18.024, 25 * GIB),
    "hf_all_results.json": (LogWriter.HF_TRAINER, 1 / 0.141, 25 * GIB),
}


@pytest.mark.parametrize("name", TRAINED)
def test_the_figures_of_a_training_log(name: str) -> None:
    writer, step_time_s, peak_memory_bytes = TRAINED[name]
    for named in (None, writer):
        run = run_of_log(LOGS / name, answered(), plan=PLAN, writer=named)
        assert run.outcome is RunOutcome.COMPLETED
        assert run.step_time_s == pytest.approx(step_time_s, rel=1e-9)
        assert run.peak_memory_bytes == peak_memory_bytes


@pytest.mark.parametrize(
    ("said", "sequences_per_s"), [("'18.02'", 18.02), ("'2.085e+04'", 20850.0), ("'9.5e-05'", 9.5e-5), ("18.024", 18.024)]
)
def test_the_hugging_face_trainer_prints_numbers_as_text(said: str, sequences_per_s: float) -> None:
    """As newer versions do; a rate whose exponent was cut off would be wrong by powers of ten."""
    loss = "{'loss': '0.1315', 'grad_norm': '0.1318', 'num_tokens': '4.684e+05', 'epoch': '0.5'}"
    ended = f"{{'train_runtime': '1575', 'train_samples_per_second': {said}, 'train_steps_per_second': '0.168', 'epoch': '1'}}"
    assert READERS[LogWriter.HF_TRAINER]([loss, ended]).sequences_per_s == [pytest.approx(sequences_per_s, rel=1e-12)]


def test_logs_that_the_frameworks_wrote_themselves() -> None:
    """Of tiny models, trained on a CPU: torchtitan 0.3 (its MetricsProcessor; the memory is of a device that was not there),
    DeepSpeed 0.19 with its logger at INFO and as it comes, the Trainer of Transformers 5.23, printed and as JSON."""
    read = {name: READERS[writer]((LOGS / name).read_text().splitlines()) for name, writer in WRITTEN.items()}
    titan = read["torchtitan_0_3_cpu.log"]
    assert titan.tokens_per_s_per_device == [10_900, 64_695, 59_187, 49_935, 57_011]
    assert titan.peak_memory_bytes == round(47.59 * GIB)
    told, quiet = read["deepspeed_0_19_cpu.log"], read["deepspeed_0_19_quiet_cpu.log"]
    assert told.sequences_per_s and told.peak_memory_bytes and not told.step_times_s
    # Without rates the parts of a step are summed.
    assert len(quiet.step_times_s) == 4 and quiet.step_times_s[-1] == pytest.approx((16.82 + 23.57 + 19.73) / 1e3)
    assert read["hf_trainer_5_23_cpu.log"].sequences_per_s == [17.141]
    assert read["hf_train_results_5_23_cpu.json"].sequences_per_s == [17.141]
    assert read["hf_train_results_5_23_cpu.json"].peak_memory_bytes is None, "memory of the host is not a device's"


def test_steps_of_a_published_run_of_experts() -> None:
    """Megatron-LM's line with the fields of a router and of zeros, figures of a Mixtral on 16 H100 (its issue 756)."""
    line = (
        " [2024-04-06 03:02:{}] iteration {:8}/     100 | consumed samples: {:12} | elapsed time per iteration (ms): {} "
        "| throughput per GPU (TFLOP/s/GPU): {} | learning rate: 1.420000E-05 | global batch size:   128 "
        "| lm loss: 1.818812E+00 | load_balancing_loss: 1.013377E+00 | loss scale: 1.0 | grad norm: 1.300 | num zeros: 0.0 "
        "| number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
    steps = ((12, 71, 9088, 5361.6, 243.6), (18, 72, 9216, 5470.7, 238.7), (24, 73, 9344, 5829.9, 224.0))
    logged = READERS[LogWriter.MEGATRON_LM]([line.format(*step) for step in steps])
    assert logged.step_times_s == pytest.approx([5.3616, 5.4707, 5.8299])


WRITTEN = {
    "torchtitan_0_3_cpu.log": LogWriter.TORCHTITAN,
    "deepspeed_0_19_cpu.log": LogWriter.DEEPSPEED,
    "deepspeed_0_19_quiet_cpu.log": LogWriter.DEEPSPEED,
    "hf_trainer_5_23_cpu.log": LogWriter.HF_TRAINER,
    "hf_train_results_5_23_cpu.json": LogWriter.HF_TRAINER,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_log_is_known_as_that_of_its_writer(name: str) -> None:
    with_times = [writer for writer in LogWriter if READERS[writer]((LOGS / name).read_text().splitlines()).has_times]
    assert with_times == [WRITTEN[name]]


def test_every_writer_has_a_log() -> None:
    assert {writer for writer, _, _ in TRAINED.values()} | {LogWriter.SERVING_BENCHMARK} == set(READERS)


@pytest.mark.parametrize("name", ["vllm_bench.json", "sglang_bench.jsonl"])
def test_the_figures_of_a_serving_benchmark(name: str) -> None:
    figures = READERS[LogWriter.SERVING_BENCHMARK]((LOGS / name).read_text().splitlines()).figures
    asked_for_p95 = {"ttft_p95_s": 0.1185, "tpot_p95_s": 0.0112} if name.startswith("vllm") else {}
    assert figures == pytest.approx({"tokens_per_s": 594.63 if asked_for_p95 else 594.7, **asked_for_p95})
    with pytest.raises(InvalidInputError, match="serving benchmark"):
        run_of_log(LOGS / name, answered(), plan=PLAN)


def test_a_serving_benchmark_without_a_rate_that_wrote_each_request() -> None:
    """SGLang's default rate is infinite, and written so; a request that failed has no tokens and counts in no percentile."""
    result = {
        "backend": "sglang",
        "request_rate": math.inf,
        "output_throughput": 3267.09,
        "p99_ttft_ms": 812.0,
        "output_lens": [3, 5, 1, 0],
        "ttfts": [0.1, 0.3, 0.2, 0.0],
        "itls": [[0.01, 0.03], [0.02, 0.02, 0.08], [], []],
        "errors": ["", "", "", "timed out"],
    }
    read = READERS[LogWriter.SERVING_BENCHMARK]
    times = {"ttft_p95_s": 0.29, "tpot_p95_s": 0.0295}
    assert read([json.dumps(result)]).figures == pytest.approx({"tokens_per_s": 3267.09, **times})
    asked_for = read([json.dumps({**result, "p95_ttft_ms": 291.0})]).figures
    assert asked_for["ttft_p95_s"] == pytest.approx(0.291), "what the benchmark says itself counts"
    for broken in ("output_lens", "ttfts", "itls"):
        assert read([json.dumps({**result, broken: "none"})]).figures == {"tokens_per_s": 3267.09}


def test_a_log_in_which_memory_ran_out() -> None:
    run = run_of_log(LOGS / "out_of_memory.log", answered(), plan=PLAN)
    assert (run.outcome, run.measured()) == (RunOutcome.OUT_OF_MEMORY, {})


def test_packed_logs_are_read(tmp_path: Path) -> None:
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress((LOGS / "megatron_lm.log").read_bytes()))
    assert run_of_log(packed, answered(), plan=PLAN).step_time_s == pytest.approx(7.1)


@pytest.mark.parametrize(
    "text", [b"", b"nothing here", b"{", b'{"output_throughput": true}', b"\x00\xff" * 100, b'{"a":' * 5000, b"1" * 100_000]
)
def test_logs_that_tell_of_no_run(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    with pytest.raises(InvalidInputError, match="tells of no step"):
        run_of_log(path, answered(), plan=PLAN)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(InvalidInputError, match="can't be read"):
            run_of_log(path, answered(), plan=PLAN)


def test_a_run_comes_back_from_its_document_and_has_one_digest() -> None:
    run = MeasuredRun(PLAN, step_time_s=7.1, peak_memory_bytes=GIB, label="job")
    assert read_run(run_document(run)) == run
    assert run_digest(run) == run_digest(read_run({**run_document(run), "outcome": "completed", "software": ""}))
    assert run_digest(run) != run_digest(read_run({**run_document(run), "label": "other"}))


def test_every_figure_is_of_some_kind_of_plan() -> None:
    others = {"plan", "outcome", "software", "label", "schema"}
    assert set(MeasuredRun.__dataclass_fields__) == set(figure_names()) | others
    assert all(set(names) <= set(figure_names()) for names in FIGURES_OF.values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"plan": "x"}, ""),
        ({"step_time_s": 0.0}, "step_time_s"),
        ({"step_time_s": float(10**9)}, "step_time_s"),
        ({"peak_memory_bytes": 10**14}, "peak_memory_bytes"),
        ({"tokens_per_s": 5.0}, "tokens_per_s"),
        ({"outcome": "out_of_memory"}, ""),
        ({"outcome": "other"}, "outcome"),
        ({"label": "a\u202eb"}, "label"),
        ({"label": "x" * 201}, "label"),
        ({"schema": "meshwright.run/2"}, "schema"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_runs_that_can_not_be_of_the_plan(change: dict[str, object], field: str) -> None:
    document = {"plan": PLAN, "step_time_s": 7.1, **change}
    with pytest.raises(DocumentError) as refused:
        observation(read_run(document), answered())
    assert refused.value.fields[0].field == field
