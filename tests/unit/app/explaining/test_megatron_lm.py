"""Commands of Megatron-LM: an export read back is the plan that it was written from, and broken commands are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.launchers.megatron_lm import MegatronFlags, layers_of_parts
from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained, question_of, with_better
from meshwright.app.service.explaining.explanation import Explanation, Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import record_as
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.launchers.decoders import decoder_shape
from meshwright.solver.problem.request import PlanRequest
from tests.support.requests_given import resolved, training
from tests.unit.app.explaining.megatron_lm import LLAMA
from tests.unit.app.explaining.resolving import resolve

COMMAND = "torchrun --nproc_per_node 8 pretrain_gpt.py " + LLAMA


def stated(flags: str) -> StatedTraining:
    found = read_command(COMMAND + flags)
    assert isinstance(found, StatedTraining)
    return found


def explanation(flags: str, **options: str) -> Explanation:
    return explained(asked_of(COMMAND + flags, OneLine("", **({"gpus": "8xH100"} | options)), resolve))


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    "search",
    [
        {"tp": [2], "pp": [2], "zero_stages": [1], "recompute": ["none"], "rank_order": ["dp-outermost"]},
        {"tp": [2], "pp": [1], "cp": [2], "zero_stages": [1], "recompute": ["selective"]},
        {"tp": [2], "pp": [1], "cp": [2], "ulysses": [1], "cp_keys": ["gathered"], "recompute": ["selective"]},
        {"tp": [1], "pp": [4], "zero_stages": [1], "schedules": ["interleaved-1f1b"], "virtual_stages": [2]},
        {"tp": [2], "pp": [1], "zero_stages": [3], "recompute": ["full"]},
        {"tp": [2], "pp": [2], "zero_stages": [1], "recompute": ["none", "full"], "recompute_layers": [5]},
        {"tp": [2], "pp": [2], "zero_stages": [1], "recompute": ["fine-grained"]},
        {"tp": [2], "pp": [2], "recompute": ["fine-grained"], "recompute_modules": ["mlp", "layernorm+core_attn+mlp"]},
    ],
    ids=str,
)
def test_the_command_of_a_plan_predicts_the_plan(search: dict[str, Any]) -> None:
    request = resolved(training(search=search))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    command = export(plan, request, "megatron-lm").command
    read = read_command(command)
    assert not [flag.name for flag in read.given if flag.standing is Standing.UNKNOWN]
    found = explained(ReadCommand(command, read, Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    own, again = pipelines_of(plan), pipelines_of(found.plan)
    assert (again.axes, again.microbatch, again.schedule) == (own.axes, own.microbatch, own.schedule)
    assert [stage.blocks for stage in again.stages] == [stage.blocks for stage in own.stages]
    assert [record_as(StageChoices, stage) for stage in again.stages] == [record_as(StageChoices, s) for s in own.stages]
    assert plan.predicted is not None and found.plan.predicted is not None
    assert found.plan.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
    assert found.plan.predicted.peak_memory_bytes == pytest.approx(plan.predicted.peak_memory_bytes)
    assert question_of(read, OneLine("", gpus="8xH100")).document["workload"]["global_batch"] == request.workload.global_batch


@pytest.mark.parametrize(
    ("words", "mode", "modules", "notes"),
    [
        ("", Recompute.FINE_GRAINED, "core_attn", 0),
        (" --recompute-modules core_attn layernorm", Recompute.SELECTIVE, None, 0),
        (" --recompute-modules moe_act mlp", Recompute.FINE_GRAINED, "moe_act+mlp", 0),
        (" --recompute-modules mlp mhc", Recompute.FINE_GRAINED, "mlp", 1),
        (" --recompute-modules mhc", Recompute.NONE, None, 1),
    ],
)
def test_modules_that_run_again_are_read(words: str, mode: Recompute, modules: str | None, notes: int) -> None:
    found = stated(f" --recompute-granularity selective{words}")
    assert (found.recompute, found.stages.recompute_modules) == (mode, modules)
    assert sum("mhc" in note for note in found.notes) == notes


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--overlap-moe-expert-parallel-comm", "asks for expert parallelism"),
        ("--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 2", "virtual stages in a pipeline"),
        ("--tensor-model-parallel-size 3", "8 ranks do not divide by tp 3"),
        ("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2", "8 ranks do not divide"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5", "32 layers over 2 stages do not divide"),
        ("--num-virtual-stages-per-pipeline-rank 2", "virtual stages need"),
        ("--micro-batch-size 3 --global-batch-size 64", "a global batch of 64 does not divide by 8 replicas x micro-batch 3"),
        ("--num-experts 8 --tensor-model-parallel-size 2", "need sequence parallelism"),
        ("--num-experts 6 --expert-model-parallel-size 4", "6 experts do not divide by ep 4"),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*7L'", "31 layers in 4 parts"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et()*2|tL'", "2 layers in 2 parts"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --pipeline-model-parallel-size 2", "ZeRO-3"),
    ],
)
def test_commands_that_do_not_start(flags: str, problem: str) -> None:
    flags = flags if "global-batch" in flags else flags + " --global-batch-size 64"
    found = explanation(flags)
    assert found.verdict is Verdict.DOES_NOT_START
    assert any(problem in each for each in found.problems), found.problems


def test_layers_that_predict_more_tokens_are_read_written_and_counted() -> None:
    flags = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
    flags += " --micro-batch-size 1 --global-batch-size 64"
    plain, told = explanation(flags), explanation(f"{flags} --mtp-num-layers 2")
    assert plain.plan is not None and told.plan is not None
    assert decoder_shape(told.request.model).mtp_layers == 2
    assert stated(f"{flags} --mtp-num-layers 2").workload["mtp_layers"] == 2
    slow, fast = told.plan.certificate.objective, plain.plan.certificate.objective
    assert slow is not None and fast is not None and slow > 1.1 * fast
    for launcher, words in (("megatron-lm", "--mtp-num-layers 2"), ("megatron-bridge", "model.mtp_num_layers=2")):
        command = export(told.plan, told.request, launcher).command
        assert words in command
        again = read_command(command)
        assert isinstance(again, StatedTraining) and again.workload["mtp_layers"] == 2


def test_gradients_that_wait_are_slower_and_the_better_command_sends_them_earlier() -> None:
    flags = "--tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 2 --use-distributed-optimizer"
    waits, earlier = explanation(flags), explanation(f"{flags} --overlap-grad-reduce")
    slow, fast = (found.plan and found.plan.certificate.objective for found in (waits, earlier))
    assert slow is not None and fast is not None and slow > 1.01 * fast

    def of_this_layout(request: PlanRequest) -> Plan:
        narrow = replace(request.search, tp=(4,), pp=(1,), cp=(1,), zero_stages=(1,))
        return solve(replace(request, search=narrow), stop=never_stop, progress=ignore_progress)

    better = with_better(waits, of_this_layout).better
    assert better is not None and better.gain is not None and better.gain > 0.01
    assert "--overlap-grad-reduce" in better.command


def test_layers_that_are_recomputed_are_counted_in_each_stage() -> None:
    flags = "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16 "
    peaks = []
    for some in (4, 12, 16):
        found = explanation(f"{flags} --recompute-granularity full --recompute-method block --recompute-num-layers {some}")
        assert found.plan is not None and found.plan.predicted is not None
        peaks.append((found.plan.predicted.step_time_s, -found.plan.predicted.peak_memory_bytes))
    assert peaks == sorted(peaks) and peaks[0] < peaks[1] < peaks[2]
    whole = explanation(f"{flags} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    assert whole.plan is not None and whole.plan.predicted is not None
    assert whole.plan.predicted.step_time_s == pytest.approx(peaks[-1][0])


def test_a_command_that_does_not_fit_has_figures() -> None:
    found = explanation("--micro-batch-size 1 --global-batch-size 64")
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert found.plan is not None and found.plan.predicted is not None
    assert found.plan.predicted.peak_memory_bytes > 100e9


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        ("Et*2|t*2L", (2, 2)),
        ("Ett|(t|)*2L", (2, 1, 1, 0)),
        ("E|(tt|)*2,L", (0, 2, 2, 0)),
        ("Et*1|t*1|t*1|t*1L", (1, 1, 1, 1)),
    ],
)
def test_layouts(layout: str, parts: tuple[int, ...]) -> None:
    assert layers_of_parts(MegatronFlags(pipeline_model_parallel_layout=layout), 4, 2, 1) == parts


@pytest.mark.parametrize("layout", ["Et*5|L", "t*4L", "E(t*4)*999999L", "E((t)*99999)*99999L", "E$(x)L", "Ett|t|tL"])
def test_layouts_that_are_none(layout: str) -> None:
    with pytest.raises(InvalidInputError, match="--pipeline-model-parallel-layout"):
        layers_of_parts(MegatronFlags(pipeline_model_parallel_layout=layout), 4, 2, 1)


def test_ends_have_layers_of_their_own() -> None:
    flags = MegatronFlags(decoder_first_pipeline_num_layers=3, decoder_last_pipeline_num_layers=5)
    assert layers_of_parts(flags, 16, 4, 1) == (3, 4, 4, 5)
    counted = MegatronFlags(account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True)
    assert layers_of_parts(counted, 14, 4, 1) == (3, 4, 4, 3)


@pytest.mark.parametrize(
    ("flags", "family"),
    [
        ("", "llama"),
        ("--qk-layernorm", "qwen3"),
        ("--add-qkv-bias", "qwen2"),
        ("--num-experts 8", "mixtral"),
        ("--num-experts 8 --qk-layernorm", "qwen3_moe"),
    ],
)
def test_sizes_are_a_model(flags: str, family: str) -> None:
    config = stated(flags).config
    assert config is not None
    assert config["model_type"] == family
    assert question_of(stated(flags), OneLine("", gpus="8xH100", batch="8")).document["model"]["config"] == config


def test_a_model_that_no_flags_describe_is_asked_for() -> None:
    with pytest.raises(InvalidInputError, match="--model"):
        explanation("--multi-latent-attention --global-batch-size 64")
    with pytest.raises(InvalidInputError, match="--batch"):
        explanation("")
    with pytest.raises(InvalidInputError, match="--gpus"):
        asked_of(COMMAND + "--global-batch-size 8", OneLine(""), resolve)
