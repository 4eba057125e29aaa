"""Logs of every writer, as figures of a run."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.evidence.logs.table import READERS, run_of_log
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.app.service.runs import observation
from meshwright.app.store.runs import FIGURES_OF, MeasuredRun, RunOutcome, figure_names, read_run, run_digest, run_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support.observed import answered
from tests.support.requests_given import resolved, serving
from tests.unit.app.runs.log_formats import SERVED, TRAINED_BY_OTHERS
from tests.unit.solver.verify.plans import serving_plan

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
    served = {LogWriter.SERVING_BENCHMARK, LogWriter.VLLM_SERVER}
    newer = {writer for writer, _, _ in TRAINED_BY_OTHERS.values()} | {writer for writer, _ in SERVED.values()}
    assert {writer for writer, _, _ in TRAINED.values()} | served | newer == set(READERS)


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


PRINTED = """\
Traffic request rate: 1.5
============ Serving Benchmark Result ============
Successful requests:                     300
Output token throughput (tok/s):         80.41
Peak output token throughput (tok/s):    61.00
Total token throughput (tok/s):          723.84
---------------Time to First Token----------------
Mean TTFT (ms):                          34710.68
{ttft}
P99 TTFT (ms):                           69799.94
-----Time per Output Token (excl. 1st token)------
Median TPOT (ms):                        236.59
{tpot}
---------------Inter-token Latency----------------
P95 ITL (ms):                            1339.92
==================================================
"""
"""The table of vLLM's benchmark, with figures of a published run of Nemotron-3-Super on a GB10 (of May 2026)."""


def test_the_table_that_a_serving_benchmark_prints() -> None:
    read = READERS[LogWriter.SERVING_BENCHMARK]
    both = {
        "ttft": "P95 TTFT (ms):                           49617.69  ",
        "tpot": "P95 TPOT (ms):                           283.73    ",
    }
    whole = PRINTED.format(**both)
    figures = {"tokens_per_s": 80.41, "ttft_p95_s": 49.61769, "tpot_p95_s": 0.28373}
    assert read(whole.splitlines()).figures == pytest.approx(figures)
    bare = PRINTED.format(ttft="", tpot="").replace("80.41", "352.14")
    assert read(bare.splitlines()).figures == {"tokens_per_s": 352.14}, "without --metric-percentiles there is no P95"
    assert read([*bare.splitlines(), *whole.splitlines()]).figures == pytest.approx(figures), "the last table counts"
    assert read([*whole.splitlines(), *bare.splitlines()]).figures == {"tokens_per_s": 352.14}, "and nothing of one before"
    assert read(whole.splitlines()[2:]).figures == {}, "no table without its title"


WINDOW = (
    "{prefix}Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {rate} tokens/s, "
    "Running: {running} reqs, {more}"
)
V1 = "Waiting: {waiting} reqs, GPU KV cache usage: 95.9%, Prefix cache hit rate: 0.0%"
STARTED = "(APIServer pid=3646) INFO 05-19 10:13:{second} [loggers.py:271] "

# Prompt and generation throughput, running and waiting requests: of vLLM's issue 43295.
BUSY = ((0.0, 1055.3, 18, 43), (0.0, 1226.3, 18, 42), (12068.8, 734.9, 18, 33), (18032.5, 589.8, 21, 23), (0.0, 1242.7, 20, 23))


def server_log(engines: tuple[str, ...] = ("Engine 000: ",)) -> list[str]:
    """A server's log: idle, busy, idle again."""
    idle = (0.0, 0.0, 0, 0)
    lines = ["(APIServer pid=3646) INFO:     Application startup complete."]
    for place, (prompt, rate, running, waiting) in enumerate((idle, *BUSY, idle)):
        for engine in engines:
            prefix, more = STARTED.format(second=f"{place}1") + engine, V1.format(waiting=waiting)
            lines.append(WINDOW.format(prefix=prefix, prompt=prompt, rate=rate, running=running, more=more))
    return lines


def test_the_log_of_a_vllm_server() -> None:
    """Means of the windows in which requests ran, the first of them left out; each engine's, together."""
    mean = (1226.3 + 734.9 + 589.8 + 1242.7) / 4
    read = READERS[LogWriter.VLLM_SERVER]
    one, two = read(server_log()), read(server_log(("Engine 000: ", "Engine 001: ")))
    assert (one.served_tokens_per_s, one.engines) == (pytest.approx(mean), 1)
    assert (two.served_tokens_per_s, two.engines) == (pytest.approx(2 * mean), 2)
    together = read(server_log(("4 Engines Aggregated: ",)))
    assert (together.served_tokens_per_s, together.engines) == (pytest.approx(mean), 4)
    # Versions before 0.8, with figures of issue 12314.
    old = "Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 2.0%, CPU KV cache usage: 0.0%."
    prefix = "INFO 01-22 18:27:20 metrics.py:449] "
    lines = [WINDOW.format(prefix=prefix, prompt=0.0, rate=rate, running=1, more=old) for rate in (41.7, 41.7, 41.5, 41.8)]
    assert read(lines).served_tokens_per_s == pytest.approx((41.7 + 41.5 + 41.8) / 3)
    assert read(lines[:1]).served_tokens_per_s == pytest.approx(41.7), "one window is better than none"
    assert not read(server_log()[:2]).has_times, "an idle server"
    others = [writer for writer in LogWriter if READERS[writer](server_log()).has_times]
    assert others == [LogWriter.VLLM_SERVER]


def served(replicas: int, groups: int = 1) -> AnsweredRequest:
    """A serving plan of so many replicas, each of so many attention groups."""
    plan, request = serving_plan(), resolved(serving())
    assert isinstance(plan.layout, Replicas)
    axes, load = replace(plan.layout.axes, attention_dp=groups), replace(plan.layout.load, replicas=replicas)
    return AnsweredRequest(replace(plan, layout=replace(plan.layout, axes=axes, load=load)), request)


def test_a_servers_log_is_of_one_replica_or_of_all(tmp_path: Path) -> None:
    mean = (1226.3 + 734.9 + 589.8 + 1242.7) / 4
    path = tmp_path / "server.log"
    path.write_text("\n".join(server_log(("Engine 000: ", "Engine 001: "))))
    for replicas, groups, told in ((2, 1, 2 * mean), (1, 2, 2 * mean), (3, 2, 6 * mean)):
        assert run_of_log(path, served(replicas, groups), plan=PLAN).tokens_per_s == pytest.approx(told)
    for replicas, groups, allowed in ((3, 1, "1, those of one replica, or 3, those of all"), (1, 4, "4")):
        with pytest.raises(InvalidInputError, match="engines are not those of the plan") as refused:
            run_of_log(path, served(replicas, groups), plan=PLAN)
        assert refused.value.allowed == allowed
    with pytest.raises(InvalidInputError, match="log of a server, the plan is of training"):
        run_of_log(path, answered(), plan=PLAN)
    pools = replace(served(2), plan=replace(served(2).plan, layout=None))
    with pytest.raises(InvalidInputError, match="says nothing of workers that differ"):
        run_of_log(path, pools, plan=PLAN)


def test_a_server_without_memory_for_its_cache_ran_out(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join([*server_log(), "ValueError: No available memory for the cache blocks. Try increasing"]))
    assert run_of_log(path, served(1), plan=PLAN).outcome is RunOutcome.OUT_OF_MEMORY


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
    others = {"plan", "outcome", "requests_per_s", "software", "label", "schema"}
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
