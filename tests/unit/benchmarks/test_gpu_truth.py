"""The benchmark of one device, tried on a CPU: its steps, what remains of those that fail, and its comparison."""

from __future__ import annotations

import json
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# What needs torch is imported by the tests that use it: every worker collects this file, and one runs it.
if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import meshwright
from benchmarks.gpu_truth import cases
from benchmarks.gpu_truth.isolated import Ended, Runner, Status, Step, Tell
from meshwright.app.evidence.measuring.sample_files import read_samples
from meshwright.app.requests.calibrations import read_calibration_document

CPU = "cpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole trial."""
    from benchmarks.gpu_truth.__main__ import main

    made_in = tmp_path_factory.mktemp("truth")
    assert main(["-o", str(made_in), "--device", "cpu", "--quick", "--no-compile"]) == 0
    return made_in


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.slow
def test_every_training_step_is_predicted_and_then_measured(folder: Path, compared: dict[str, Any]) -> None:
    rows = {row["run"]: row for row in compared["rows"] if row["figure"] == "step_time_s"}
    assert {step["status"] for step in compared["steps"]} == {"done"}
    order = [step["name"] for step in compared["steps"]]
    assert order.index("predict") < order.index("train-small-llama-eager")
    for case in cases.TINY.training:
        row = rows[f"{case.name} eager"]
        assert row["measured"] > 0 and row["why"] is None
        assert row["error"]["measured"] == pytest.approx(row["predicted"]["measured"] / row["measured"] - 1)
        assert "not run" in rows[f"{case.name} compiled"]["why"]
    page = (folder / "comparison.md").read_text(encoding="utf-8")
    assert "says nothing of the machine" in page
    assert page.count("| small-llama eager | step_time |") == 1


def test_serving_points_are_measured_on_a_cpu_and_say_why_they_are_not_predicted(compared: dict[str, Any]) -> None:
    for point in cases.TINY.serving:
        (row,) = [row for row in compared["rows"] if row["run"] == f"serving {point.name} eager" and row["figure"] == "tpot_s"]
        assert row["measured"] > 0
        assert row["predicted"] == {"measured": None}
        assert "precision" in row["why"]


def test_the_calibration_can_be_used(folder: Path, compared: dict[str, Any]) -> None:
    document = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
    assert read_calibration_document(document).name.startswith(document["key"])
    samples = read_samples(folder / "measurements.csv")
    assert set(samples.device.tolist()) == {document["key"]}
    assert set(samples.kind.tolist()) >= {"gemm", "prefill_attention", "attention_backward", "decode_attention", "norm"}
    # The request is a public one: asked again it gives what was predicted.
    request = json.loads((folder / "requests/moe-eager-measured.request.json").read_text(encoding="utf-8"))
    (row,) = [row for row in compared["rows"] if row["run"] == "moe eager" and row["figure"] == "step_time_s"]
    assert meshwright.plan(request).document["predicted"]["step_time_s"] == row["predicted"]["measured"]


def test_all_points_are_predicted_for_a_device_of_the_catalogue(tmp_path: Path) -> None:
    from benchmarks.gpu_truth import prediction

    told: list[dict[str, Any]] = []
    prediction.run(
        told.append, machine={"memory_bytes": 2**37, "precision": "bf16"}, key="h200_sxm", known="NVIDIA H200",
        cases=cases.FULL, calibration=tmp_path / "none.json", folder=tmp_path,
    )  # fmt: skip
    assert set(told[-1]) == {prediction.CATALOGUE}
    answers = told[-1][prediction.CATALOGUE]
    assert len(answers["training"]) == 6 and len(answers["serving"]) == 3
    for name, answer in answers["training"].items():
        assert answer["low_s"] < answer["step_time_s"] < answer["high_s"], name
        assert 0 < answer["allocator_bytes"] < answer["peak_memory_bytes"] < 24e9
    times = [answer["tpot_s"] for answer in answers["serving"].values()]
    assert times == sorted(times)
    # One prompt of 2,048 tokens: 15 TFLOP, with nothing of a server around it.
    assert 15e12 / 989e12 < answers["serving"]["1 x 2048 in, 32 out"]["ttft_s"] < 3 * 15e12 / 989e12


@pytest.mark.parametrize(
    ("name", "key"), [("NVIDIA H100 80GB HBM3", "h100_sxm"), ("NVIDIA GeForce RTX 4090", "rtx_4090"), ("Orin", None)]
)
def test_a_drivers_name_is_looked_up(name: str, key: str | None) -> None:
    from benchmarks.gpu_truth import prediction

    assert prediction.catalogue_key(name) == key


def _told_then_killed(tell: Tell) -> None:
    tell({"half": 1})
    os.abort()


def _told_then_slow(tell: Tell) -> None:
    tell({"half": 2})
    time.sleep(600)


def _wrong(tell: Tell) -> None:
    raise ValueError("no such kernel")


def test_what_a_step_told_remains_however_it_ends(tmp_path: Path) -> None:
    runner = Runner(tmp_path, ends_s=time.monotonic() + 600)
    killed = runner.run(Step("killed", _told_then_killed, {}, 120))
    assert (killed.status, killed.results, killed.error) == (Status.FAILED, {"half": 1}, "ended by signal 6")
    wrong = runner.run(Step("wrong", _wrong, {}, 120))
    assert (wrong.status, wrong.results, wrong.error) == (Status.FAILED, {}, "ValueError: no such kernel")
    late = Runner(tmp_path, ends_s=time.monotonic() - 1).run(Step("late", _wrong, {}, 120))
    assert late.status is Status.NOT_RUN


def test_a_step_is_stopped_at_its_limit(tmp_path: Path) -> None:
    runner = Runner(tmp_path, ends_s=time.monotonic() + 600)
    # Long enough to begin on a busy machine; what is asserted does not depend on how long it took.
    slow = runner.run(Step("slow", _told_then_slow, {}, 3))
    assert slow.status is Status.OUT_OF_TIME and slow.error == "stopped after 3 s"
    assert slow.results in ({"half": 2}, {})


def test_weights_follow_masters_in_fp32() -> None:
    import torch

    from benchmarks.gpu_truth import training

    torch.manual_seed(2)
    layer = torch.nn.Linear(8, 8, bias=False)
    half = torch.nn.Linear(8, 8, bias=False).bfloat16()
    with torch.no_grad():
        half.weight.copy_(layer.weight)
        layer.weight.copy_(half.weight)
    updates = training.optimizer(layer), training.optimizer(half)
    for _ in range(3):
        for _ in range(2):
            x = torch.randn(4, 8).bfloat16()
            layer(x.float()).sum().backward()
            half(x).sum().backward()
            assert half.weight.grad is None
        for update in updates:
            update()
    # Steps of 1e-5 are lost in 16 bits; the masters have summed them.
    assert half.weight.dtype is torch.bfloat16
    assert torch.equal(half.weight, layer.weight.bfloat16())
    assert not torch.equal(layer.weight, half.weight.float())


def test_experts_are_what_their_formula_says() -> None:
    import torch

    from benchmarks.gpu_truth.modules import Experts, made

    decoder = cases.TINY.training[1].decoder
    torch.manual_seed(1)
    experts = made(decoder, device=torch.device(CPU), dtype=torch.float32).layers[0].ffn
    assert isinstance(experts, Experts)
    x = torch.randn(1, 6, decoder.hidden)
    scores = torch.softmax(experts.router(x[0]), -1)
    expected = torch.zeros(6, decoder.hidden)
    for token in range(6):
        for place in range(decoder.experts_per_token):
            expert = (token * decoder.experts_per_token + place) % decoder.experts
            gate, up = x[0, token] @ experts.gate[expert], x[0, token] @ experts.up[expert]
            expected[token] += scores[token, expert] * ((torch.nn.functional.silu(gate) * up) @ experts.down[expert])
    assert torch.allclose(experts(x)[0], expected, atol=1e-5)


def test_the_loop_answers_as_the_model_does() -> None:
    import torch

    from benchmarks.gpu_truth import serving
    from benchmarks.gpu_truth.machine import Machine
    from benchmarks.gpu_truth.modules import made, rotation

    here, decoder, point = Machine(CPU), cases.TINY.served, cases.ServingPoint(2, 5, 4)
    with torch.inference_mode():
        model = made(decoder, device=here.device, dtype=torch.float32)
        loop = serving.Loop(model, here, point, compiled=False)
        loop.prompts()
        tokens = loop._prompts
        for step in [lambda: None, *loop._steps]:
            step()
            cos, sin = rotation(tokens.shape[1], decoder.head_dim, here.device)
            likeliest = model(tokens, cos, sin)[:, -1:].argmax(-1)
            assert torch.equal(loop._last, likeliest)
            tokens = torch.cat((tokens, likeliest), dim=1)
    assert tokens.shape[1] == point.prompt_tokens + point.output_tokens


def test_the_comparison_counts_errors_and_says_what_is_missing() -> None:
    from benchmarks.gpu_truth import report

    few = cases.Cases(cases.TINY.training[:1], cases.TINY.served, ())
    answer = {"step_time_s": 1.2, "low_s": 0.9, "high_s": 1.5, "allocator_bytes": 3e9}
    asked = {"measured": {"training": {"small-llama eager": answer}, "serving": {}}}
    asked |= {"catalogue": {"training": {"small-llama eager": {"refused": "memory | is short"}}, "serving": {}}}
    ended = {
        "predict": Ended("predict", Status.DONE, 1.0, None, asked),
        "train-small-llama-eager": Ended("", Status.OUT_OF_TIME, 9.0, "stopped after 9 s", {"step_time_s": 1.0}),
    }  # fmt: skip
    document = report.comparison({"name": "some", "memory_bytes": 2**30}, few, ended, known="some", is_tiny=False)
    row = document["rows"][0]
    assert row["error"] == {"measured": pytest.approx(0.2), "catalogue": None}
    assert row["within"] is True and row["why"] == "catalogue: memory | is short"
    assert document["mean_absolute_error"]["step_time_s"] == {"measured": pytest.approx(0.2), "catalogue": None}
    page = report.page(document)
    assert "| small-llama eager | step_time | 1 s | 1.2 s | +20.0% | yes |  |  | catalogue: memory / is short |" in page
    assert "says nothing of the machine" not in page
