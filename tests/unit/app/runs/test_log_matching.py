"""Logs of another workload than the plan: none is taken, and each log of the plan's own is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.evidence.logs.logged import ran_out_of_memory
from meshwright.app.evidence.logs.matching import mismatches, not_compared
from meshwright.app.evidence.logs.stated import NOTHING_STATED, Stated, exactly, merged
from meshwright.app.evidence.logs.table import READERS, run_of_log
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support.observed import answered
from tests.support.requests_given import resolved, serving
from tests.unit.app.runs.log_formats import LOGS, PLAN, SERVED, TRAINED_BY_OTHERS, served_by
from tests.unit.solver.verify.plans import serving_plan

MISMATCHES, SEED = 200, 35

Draw = Callable[[random.Random], str]


def _whole(planned: int) -> Draw:
    """Another whole number: one off as often as many times over or under."""

    def draw(rng: random.Random) -> str:
        near = planned + rng.choice((-1, 1)) * rng.randint(1, max(1, planned // 4))
        return str(rng.choice([near, planned * rng.randint(2, 16), max(1, planned // rng.randint(2, 8))]))

    return draw


def _off(planned: float, least: float, digits: int = 2) -> Draw:
    """A figure that is off by more than the share ``least``, up or down."""

    def draw(rng: random.Random) -> str:
        factor = rng.choice((rng.uniform(1.0 + least, 8.0), rng.uniform(0.1, 1.0 / (1.0 + least))))
        return f"{planned * factor:.{digits}f}"

    return draw


def _model(rng: random.Random) -> str:
    return rng.choice(("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1", "openai/gpt-oss-120b"))


@dataclass(frozen=True, slots=True)
class Field:
    """What a log states in one place: a pattern with the stated words as its one group, and how others are drawn."""

    log: str
    words: str
    draw: Draw


FIELDS = (
    Field("megatron_lm.log", r"global batch size:   ([0-9]+)", _whole(128)),
    Field("megatron_bridge.log", r"global_batch_size \.+ ([0-9]+)", _whole(128)),
    Field("megatron_bridge.log", r"seq_length \.+ ([0-9]+)", _whole(8192)),
    Field("megatron_bridge.log", r"world_size \.+ ([0-9]+)", _whole(8)),
    Field("nemo.log", r"global_batch_size: ([0-9]+)", _whole(128)),
    Field("deepspeed_2020.log", r"train_batch_size \.+ ([0-9]+)", _whole(128)),
    Field("deepspeed_2020.log", r"world_size \.+ ([0-9]+)", _whole(8)),
    Field("deepspeed_pipeline.log", r"samples/sec: ([0-9.]+)", _off(18.028, 0.03, 3)),
    Field("torchtitan_no_memory.log", r"global batch size ([0-9]+)", _whole(128)),
    Field("torchtitan_no_memory.log", r"sequence length ([0-9]+)", _whole(8192)),
    Field("torchtitan_no_memory.log", r"dp_shard=([0-9]+)", _whole(8)),
    Field("hf_trainer.log", r"train_samples_per_second(?:': |   =     )([0-9.]+)", _off(18.024, 0.03, 3)),
    Field("axolotl.log", r"'train_steps_per_second': '([0-9.]+)'", _off(0.141, 0.03, 3)),
    Field("trainer_state.json", r'"num_input_tokens_seen": ([0-9]+)', _off(167772160, 0.06, 0)),
    Field("trainer_log.jsonl", r'"total_tokens": (104857600)', _off(104857600, 0.1, 0)),
    *(
        Field(log, words, _off(planned, least))
        for log, isl, osl in (
            ("vllm_bench.json", r'"total_input_tokens": ([0-9]+)', r'"total_output_tokens": ([0-9]+)'),
            ("vllm_bench.txt", r"Total input tokens: +([0-9]+)", r"Total generated tokens: +([0-9]+)"),
            ("sglang_bench.txt", r"Total input tokens: +([0-9]+)", r"Total generated tokens: +([0-9]+)"),
        )
        for words, planned, least in ((isl, 1024000.0, 0.06), (osl, 153600.0, 0.25))
    ),
    Field("vllm_bench.json", r'"request_rate": ([0-9.]+)', _off(2.0, 0.03)),
    Field("vllm_bench.json", r'"model_id": "([^"]+)"', _model),
    Field("vllm_bench.json", r'"burstiness": ([0-9.]+)', _off(1.0, 0.2)),
    Field("vllm_bench.txt", r"(?:request rate|configured \(RPS\)): +([0-9.]+)", _off(2.0, 0.03)),
    Field("vllm_bench.txt", r"model='([^']+)'", _model),
    Field("sglang_bench.txt", r"Traffic request rate: +([0-9.]+)", _off(2.0, 0.03)),
    Field("sglang_bench.jsonl", r'"request_rate": (2\.0)', _off(2.0, 0.03)),
    Field("genai_perf.json", r'"request_rate": ([0-9.]+)', _off(2.0, 0.03)),
    Field("genai_perf.json", r'"input_sequence_length": {"unit": "tokens", "avg": ([0-9.]+)', _off(2000.0, 0.06)),
    Field("genai_perf.json", r'"model": \["([^"]+)"', _model),
    Field("genai_perf.txt", r"--request-rate-range ([0-9.]+)", _off(2.0, 0.03)),
    Field("genai_perf.txt", r"Output Sequence Length \(tokens\) │ +([0-9.]+)", _off(300.0, 0.25)),
    Field("guidellm.json", r'"rate": ([0-9.]+)', _off(2.0, 0.03)),
    Field("guidellm.json", r'"model": "([^"]+)"', _model),
    Field("trtllm_bench.txt", r"Number of concurrent requests:  ([0-9.]+)", _off(64.0, 1.05)),
    Field("trtllm_bench.txt", r"Average Input Length \(tokens\): +([0-9.]+)", _off(2000.0, 0.06)),
    Field("trtllm_bench.txt", r"TP Size: +([0-9]+)", _whole(2)),
    Field("mini_sglang.txt", r"token/s, ([0-9.]+) req/s", _off(2.0, 0.35, 4)),
    Field("mini_sglang.txt", r"Num tokens: #([0-9]+)", _off(154112.0, 0.3, 0)),
)

OF_PLANS = [
    *TRAINED_BY_OTHERS,
    *SERVED,
    *("megatron_lm.log", "torchtitan.log", "deepspeed.log", "deepspeed_pipeline.log", "hf_trainer.log", "hf_all_results.json"),
    *("vllm_bench.json", "sglang_bench.jsonl"),
]


def plan_of_log(name: str) -> AnsweredRequest:
    """The plan that a log of the tests is of."""
    return served_by(name) if name in SERVED or name.endswith(("bench.json", "bench.jsonl")) else answered()


@pytest.mark.parametrize("name", OF_PLANS)
def test_a_log_of_the_plans_own_workload_is_taken(name: str) -> None:
    assert run_of_log(LOGS / name, plan_of_log(name), plan=PLAN).measured()


def test_no_log_of_another_workload_is_taken(tmp_path: Path) -> None:
    """Two hundred, each a log of the plan's own in which one figure was changed."""
    rng = random.Random(SEED)
    drawn = [rng.choice(FIELDS) for _ in range(MISMATCHES - len(FIELDS))]
    for number, field in enumerate([*FIELDS, *drawn]):
        other = field.draw(rng)
        text = (LOGS / field.log).read_text()
        changed = re.sub(field.words, lambda found, other=other: found[0].replace(found[1], other), text)  # type: ignore[misc]
        assert changed != text, field
        path = tmp_path / f"{number}-{field.log}"
        path.write_text(changed)
        refused = _refused(path, plan_of_log(field.log))
        assert refused is not None, f"{field.log}: {field.words} as {other} was taken"
        assert "plan's workload" in str(refused) and refused.given and refused.allowed and refused.remedy, refused


def _refused(path: Path, of_plan: AnsweredRequest) -> InvalidInputError | None:
    try:
        run_of_log(path, of_plan, plan=PLAN)
    except InvalidInputError as error:
        return error
    return None


def test_both_figures_are_said_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text((LOGS / "megatron_lm.log").read_text().replace("global batch size:   128", "global batch size:   512"))
    with pytest.raises(InvalidInputError) as refused:
        run_of_log(path, answered(), plan=PLAN)
    assert "global batch 512" in str(refused.value.given)
    assert "global batch 128" in str(refused.value.allowed)
    assert refused.value.remedy == "plan what ran (--batch 512), or give --as-run"


def test_memory_that_ran_out_under_another_batch_tells_nothing_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = ["  global_batch_size ............................... 512", *(LOGS / "out_of_memory.log").read_text().splitlines()]
    assert ran_out_of_memory(lines)
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidInputError, match="plan's workload"):
        run_of_log(path, answered(), plan=PLAN)


CLOSED: dict[str, Any] = {"process": "closed", "concurrency": 64}
OF_CLIENTS: dict[str, Any] = {**CLOSED, "requests_per_client": 8}
OPEN: dict[str, Any] = {"process": "poisson", "requests_per_s": 50.0}
BURSTS: dict[str, Any] = {"process": "gamma", "requests_per_s": 2.0, "cv": 2.0}
SENT = Stated(requests_per_s=exactly(float("inf")), max_concurrency=exactly(64.0))
LIMITED = replace(SENT, requests_per_s=exactly(50.0))
AT_A_RATE = Stated(requests_per_s=exactly(2.0))


@pytest.mark.parametrize(
    ("arrivals", "stated", "planned_so"),
    [
        (CLOSED, SENT, True),
        (CLOSED, replace(SENT, max_concurrency=exactly(32.0)), False),
        (CLOSED, replace(SENT, max_concurrency=None, requests=exactly(64.0)), True),
        (CLOSED, replace(SENT, max_concurrency=None, requests=exactly(300.0), mean_concurrency=exactly(60.0)), False),
        (CLOSED, AT_A_RATE, False),
        # A limit of requests at once that is felt makes of a rate that many at once, and no load of the rate.
        (CLOSED, replace(LIMITED, answered_per_s=exactly(9.0)), True),
        (OPEN, replace(LIMITED, answered_per_s=exactly(9.0)), False),
        (OPEN, replace(LIMITED, answered_per_s=exactly(49.0)), True),
        (OPEN, SENT, False),
        (OPEN, Stated(is_queued=True), False),
        (OF_CLIENTS, replace(SENT, requests=exactly(512.0)), True),
        (OF_CLIENTS, replace(SENT, requests=exactly(500.0)), False),
        (BURSTS, replace(AT_A_RATE, arrival_cv=exactly(0.25**-0.5)), True),
        (BURSTS, replace(AT_A_RATE, arrival_cv=exactly(1.0)), False),
    ],
)
def test_loads_that_are_one_and_loads_that_are_not(arrivals: dict[str, Any], stated: Stated, planned_so: bool) -> None:
    document = serving()
    document["workload"]["arrivals"] = arrivals
    found = mismatches(stated, AnsweredRequest(serving_plan(), resolved(document)))
    assert (not found) is planned_so


def test_names_that_are_not_known_are_said_to_be_not_compared() -> None:
    known = Stated(model="meta-llama/Llama-3.1-8B-Instruct", global_batch=exactly(128.0), seq_len=exactly(8192.0))
    assert not mismatches(known, answered()) and not not_compared(known, answered())
    own = replace(known, model="/data/checkpoints/final")
    assert not mismatches(own, answered()) and not_compared(own, answered()) == ["model (/data/checkpoints/final)"]
    assert not_compared(NOTHING_STATED, answered()) == ["batch", "sequence length"]
    assert not_compared(NOTHING_STATED, served_by("trtllm_bench.txt")) == ["load", "lengths"]


def test_what_two_readers_found_is_one_workload() -> None:
    first, second = Stated(global_batch=exactly(1.0)), Stated(global_batch=exactly(2.0), seq_len=exactly(3.0))
    assert merged([first, second]) == Stated(global_batch=exactly(1.0), seq_len=exactly(3.0))


LONG = 500_000
W = LogWriter
HOSTILE: dict[LogWriter, tuple[str, ...]] = {
    W.MEGATRON_LM: (
        "global_batch_size ",
        "seq_length ........",
        "actual seqlen:",
        "Step Time : 1",
        "max reserved: memory (MB) |",
    ),
    W.TORCHTITAN: (
        *("step: 1 ", "step: 1 tps:", "step: 1 memory: 9GiB tps: ", "\x1b[", "device mesh with parallelism: a=1, "),
        *("device mesh with [", "local batch size 1, global batch size 1"),
    ),
    W.NEMO: ("train_step_timing in s=1 global_step=9 consumed_samples=9 ", "global_batch_size"),
    W.DEEPSPEED: (
        "SamplesPerSec=1",
        "steps: 1 ",
        "time (ms) | fwd: 1 | bwd: 1 | ",
        "iter time (s): 1 ",
        "train_batch_size ...",
    ),
    W.HF_TRAINER: ("train_steps_per_second: ", "'epoch': ", "'tokens_per_second_per_gpu': ", "(GiB)': ", " ", "1"),
    W.LLAMA_FACTORY: ('"current_steps": 1, ', '"current_steps": 1, "elapsed_time": "1 day, '),
    W.SERVING_BENCHMARK: (
        "=",
        "= Serving Benchmark Result =",
        "Namespace(",
        "model='",
        "Total input tokens:  ",
        '{"output_throughput": ',
    ),
    W.GENAI_PERF: (
        "│ Statistic │",
        "| statistic | a (",
        "perf_analyzer -m ",
        "--concurrency-range perf ",
        '{"output_token_throughput": ',
    ),
    W.GUIDELLM: ('{"benchmarks": [', '{"benchmarks": '),
    W.TRTLLM_BENCH: ("Model : ", "Model: x ", "[TTFT] P95 : ", "Number of requests:"),
    W.MINI_SGLANG: ("Num requests: #1, ", "Throughput: 1 token/s, ", "Duration: 1"),
    W.VLLM_SERVER: ("Engine 1: Avg prompt throughput: 1 tokens/s, ", "1 Engines Aggregated: ", "1"),
}


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("writer", HOSTILE)
def test_long_lines_are_searched_in_one_pass(writer: LogWriter) -> None:
    """Of a pattern that begins again at each of its first words these lines would take minutes; they take some 0.1 s each."""
    for piece in HOSTILE[writer]:
        for around in ("", "{"):
            READERS[writer]([around + piece * (LONG // len(piece)) + " 1 x"])


def test_every_reader_is_given_long_lines() -> None:
    assert set(HOSTILE) == set(READERS)


@pytest.mark.parametrize(
    ("rates", "of_128"),
    [
        (("'1.802e+04'", "'140.8'"), True),
        (("18.024", "0.141"), True),
        (("'17.5'", "'0.141'"), False),
        (("18024.0", "141.5"), False),
        (("0.0", "0.0"), None),
    ],
)
def test_the_batch_of_a_trainer_is_the_quotient_of_its_rates(rates: tuple[str, str], of_128: bool | None) -> None:
    """To within the rounding of the two: four digits of text, or three behind the point."""
    line = f"{{'train_runtime': 9.0, 'train_samples_per_second': {rates[0]}, 'train_steps_per_second': {rates[1]}}}"
    batch = READERS[LogWriter.HF_TRAINER]([line]).stated.global_batch
    assert (None if batch is None else batch.allows(128)) is of_128
