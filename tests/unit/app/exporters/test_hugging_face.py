"""Exports to launchers over Hugging Face Accelerate, read by each one's own parser."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from benchmarks import launchable_plans
from meshwright.app.launching.exporters import Export, export
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.costmodels.model.adapter import Adapter, BaseFormat
from meshwright.costmodels.model.documents import DocumentLengths
from meshwright.costmodels.model.implementation import AdapterTarget
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.plans import arguments, training
from tests.unit.app.exporters.real_tools import ask

FAMILY = [Launcher.ACCELERATE, Launcher.HF_TRAINER, Launcher.TRL, Launcher.AXOLOTL, Launcher.LLAMA_FACTORY]
FULL = (Recompute.FULL,)


def with_state(planned: tuple[Plan, PlanRequest], **fields: Any) -> tuple[Plan, PlanRequest]:
    """The plan with other places of its state."""
    plan, request = planned
    return with_fields(plan, stages=tuple(replace(stage, **fields) for stage in flat(plan).stages)), request


def plans() -> list[tuple[Plan, PlanRequest]]:
    """One plan of each back end, on one node and on several."""
    return [
        training(dp=8),
        training(dp=8, zero_stage=1, microbatch=2),
        training(dp=8, zero_stage=3, recompute=FULL),
        training(dp=16, zero_stage=2, microbatch=4),
        training(dp=16, zero_stage=3, recompute=FULL, devices_per_node=4),
        with_state(training(dp=8, zero_stage=2, recompute=FULL), offload=Offload(optimizer=1.0)),
        with_state(training(dp=8, zero_stage=3), offload=Offload(optimizer=1.0, weights=1.0, gradients=1.0)),
    ]


def in_groups() -> tuple[Plan, PlanRequest]:
    """ZeRO-3 within groups of eight of 32 ranks."""
    return with_state(training(dp=32, zero_stage=3, recompute=FULL), shard_ranks=8)


def words_after(found: Export, word: str) -> list[str]:
    """The arguments behind a word, with values where a shell would fill them in."""
    words = [w.replace("$NODE_RANK", "1").replace("$MASTER_ADDR", "node-0") for w in arguments(found)]
    return words[words.index(word) + 1 :]


def read(tool: str, script: str, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    answers = ask(tool, script, questions)
    assert [a["error"] for a in answers if "error" in a] == []
    return list(answers)


def test_accelerate_reads_its_configuration() -> None:
    planned = [*plans(), in_groups()]
    exports = [export(*each, "accelerate") for each in planned]
    answers = read("accelerate", "accelerate_args.py", [{"files": e.files, "words": words_after(e, "launch")} for e in exports])
    for (plan, request), told in zip(planned, answers, strict=True):
        stage, per_node = flat(plan).stages[0], request.cluster.groups[0].node.devices_per_node
        assert told["num_processes"] == plan.devices
        assert int(told["nproc_per_node"]) == min(plan.devices, per_node)
        if told["use_deepspeed"]:
            assert told["deepspeed"] == {"zero_stage": stage.zero_stage, "accumulation": flat(plan).microbatch.count}
        elif stage.zero_stage:
            assert told["fsdp"]["reshard_after_forward"] is (stage.zero_stage == 3)
            assert told["fsdp"]["activation_checkpointing"] is (stage.recompute is Recompute.FULL)
            assert told["fsdp"]["fsdp_version"] == 2
    assert [told["use_deepspeed"] for told in answers] == [False, True, False, False, False, True, True, False]
    assert answers[-1]["mesh"] == {"dp_replicate": 4, "dp_shard": 8, "all": 32}


@pytest.mark.slow
def test_the_trainer_reads_its_arguments() -> None:
    exports = [export(*each, "hf-trainer") for each in plans()]
    asked = [{"files": e.files, "words": words_after(e, "run_clm.py")} for e in exports]
    answers = read("accelerate", "hf_trainer_args.py", asked)
    for (plan, _), told in zip(plans(), answers, strict=True):
        microbatch = flat(plan).microbatch
        assert (told["per_device_train_batch_size"], told["gradient_accumulation_steps"]) == (microbatch.size, microbatch.count)
    assert [told["zero_stage"] for told in answers] == [None, 1, None, None, None, 2, 3]
    assert answers[2]["fsdp_plugin_args"]["reshard_after_forward"] is True
    assert answers[2]["accelerator_config"]["gradient_accumulation_kwargs"] == {"sync_each_batch": True}
    assert answers[3]["fsdp_plugin_args"]["reshard_after_forward"] is False


@pytest.mark.slow
def test_trl_reads_its_configuration_and_hands_on_the_launch() -> None:
    exports = [export(*each, "trl") for each in (*plans(), in_groups())]
    answers = read("trl", "trl_args.py", [{"files": e.files, "words": words_after(e, "sft")} for e in exports])
    for told in answers:
        assert (told["model"], told["max_length"], told["packing"]) == ("meta-llama/Llama-3.1-8B", 8192, True)
    assert answers[0]["gradient_checkpointing"] is False
    assert answers[5]["gradient_checkpointing"] is True, "DeepSpeed recomputes by the trainer's own"
    launched = "--accelerate_config accelerate.yaml --machine_rank 1 --main_process_ip node-0 --main_process_port 29500"
    assert " ".join(answers[3]["launched"]) == launched
    asked = [{"files": e.files, "words": ["--config_file", "accelerate.yaml", "sft.py"]} for e in exports]
    assert len(read("accelerate", "accelerate_args.py", asked)) == len(exports)


@pytest.mark.slow
def test_axolotl_reads_its_configuration() -> None:
    planned = [*plans(), in_groups()]
    exports = [export(*each, "axolotl") for each in planned]
    answers = read("axolotl", "axolotl_args.py", [{"files": e.files, "config": "axolotl.yaml"} for e in exports])
    for (plan, _), told in zip(planned, answers, strict=True):
        microbatch = flat(plan).microbatch
        assert (told["micro_batch_size"], told["gradient_accumulation_steps"]) == (microbatch.size, microbatch.count)
    assert (answers[-1]["dp_replicate_size"], answers[-1]["dp_shard_size"]) == (4, 8)
    assert answers[2]["fsdp"]["reshard_after_forward"] is True
    assert answers[5]["deepspeed"] == "ds_config.json"


@pytest.mark.slow
def test_llama_factory_reads_its_configuration() -> None:
    exports = [export(*each, "llama-factory") for each in plans()]
    answers = read(
        "llamafactory", "llama_factory_args.py", [{"files": e.files, "config": "llama_factory.yaml"} for e in exports]
    )
    for (plan, _), told in zip(plans(), answers, strict=True):
        microbatch = flat(plan).microbatch
        assert (told["per_device_train_batch_size"], told["gradient_accumulation_steps"]) == (microbatch.size, microbatch.count)
        # Packing leaves one token of the length free.
        assert (told["cutoff_len"], told["packing"], told["type"]) == (8191, True, "full")
    assert [told["disable_gradient_checkpointing"] for told in answers] == [True, True, True, True, True, False, True]


@pytest.mark.slow
def test_packed_documents_are_read_by_each_tools_own_parser() -> None:
    plan, request = training(dp=8, zero_stage=3)
    assert isinstance(request, TrainingRequest)
    packed = replace(request, workload=replace(request.workload, lengths=DocumentLengths((500, 9000), (9, 1))))
    trl, axolotl = (export(plan, packed, name) for name in ("trl", "axolotl"))
    keys = yaml.safe_load(trl.files["sft.yaml"])
    assert (keys["packing_strategy"], keys["attn_implementation"]) == ("bfd", "flash_attention_2")
    keys = yaml.safe_load(axolotl.files["axolotl.yaml"])
    assert keys["sample_packing"] and keys["flash_attention"]
    assert all(any("documents are packed whole" in said for said in e.assumptions) for e in (trl, axolotl))
    read("trl", "trl_args.py", [{"files": trl.files, "words": words_after(trl, "sft")}])
    read("axolotl", "axolotl_args.py", [{"files": axolotl.files, "config": "axolotl.yaml"}])


def adapted(base: BaseFormat, zero_stage: int) -> tuple[Plan, PlanRequest]:
    """A plan of eight ranks that trains adapters."""
    plan, request = training(dp=8, zero_stage=zero_stage)
    assert isinstance(request, TrainingRequest)
    adapter = Adapter(32, (AdapterTarget.Q, AdapterTarget.V), base)
    return plan, replace(request, workload=replace(request.workload, adapter=adapter))


@pytest.mark.slow
def test_adapters_are_read_by_each_tools_own_parser() -> None:
    planned = [adapted(BaseFormat.WORKING, 3), adapted(BaseFormat.NF4, 0)]
    trl, axolotl, factory = ([export(*each, name) for each in planned] for name in ("trl", "axolotl", "llama-factory"))
    for packed, export_ in zip((False, True), trl, strict=True):
        keys = yaml.safe_load(export_.files["sft.yaml"])
        assert (keys["use_peft"], keys["lora_r"], keys["lora_target_modules"]) == (True, 32, ["q_proj", "v_proj"])
        assert keys.get("load_in_4bit", False) is packed
    assert [yaml.safe_load(e.files["axolotl.yaml"])["adapter"] for e in axolotl] == ["lora", "qlora"]
    for packed, export_ in zip((False, True), factory, strict=True):
        keys = yaml.safe_load(export_.files["llama_factory.yaml"])
        assert (keys["lora_target"], keys.get("quantization_bit")) == ("q_proj,v_proj", 4 if packed else None)
    read("trl", "trl_args.py", [{"files": e.files, "words": words_after(e, "sft")} for e in trl])
    read("axolotl", "axolotl_args.py", [{"files": e.files, "config": "axolotl.yaml"} for e in axolotl])
    told = read("llamafactory", "llama_factory_args.py", [{"files": e.files, "config": "llama_factory.yaml"} for e in factory])
    assert [each["type"] for each in told] == ["lora", "lora"]


def test_deepspeed_runs_what_fsdp_has_not() -> None:
    for planned in plans():
        found = export(*planned, "accelerate")
        config = yaml.safe_load(found.files["accelerate.yaml"])
        assert ("ds_config.json" in found.files) == (config["distributed_type"] == "DEEPSPEED")
    config = json.loads(export(*plans()[1], "trl").files["ds_config.json"])
    assert config["zero_optimization"]["stage"] == 1
    assert config["optimizer"]["params"]["lr"] == "auto"


@pytest.mark.parametrize("launcher", FAMILY)
def test_gradients_stay_sharded_between_micro_batches(launcher: Launcher) -> None:
    found = export(*training(dp=8, zero_stage=3), launcher.value)
    said = "\n".join([found.command, *found.files.values(), *found.assumptions])
    assert "sync_each_batch" in said
    alone = export(*training(dp=8, zero_stage=3, microbatch=8), launcher.value)
    assert "sync_each_batch" not in "\n".join([alone.command, *alone.files.values()])


@pytest.mark.parametrize("launcher", FAMILY)
def test_what_it_has_not_is_refused_by_name(launcher: Launcher) -> None:
    for planned, refused in (
        (training(dp=4, tp=2), "no tensor parallelism"),
        (training(dp=4, pp=2), "no pipelines"),
        (training(dp=4, cp=2), "context parallelism"),
        (training(dp=8, recompute=(Recompute.SELECTIVE,)), "whole layers"),
        (with_state(in_groups(), offload=Offload(optimizer=1.0)), "part of dp x cp"),
        (training(dp=8, optimizer=Optimizer.MUON), "muon; it has adamw"),
    ):
        with pytest.raises(ExportError, match=refused):
            export(*planned, launcher.value)


def test_the_trainers_arguments_say_no_groups() -> None:
    with pytest.raises(ExportError, match="within a part of dp x cp"):
        export(*in_groups(), "hf-trainer")


def test_nodes_that_take_part_with_other_numbers_of_devices_say_so_as_if_all_did() -> None:
    plan, request = training(dp=16, zero_stage=3)
    plan = with_fields(plan, devices=16)
    group = request.cluster.groups[0]
    request = replace(
        request,
        cluster=replace(
            request.cluster,
            groups=(group, replace(group, name="b", node=replace(group.node, devices_per_node=4), nodes=2)),
        ),
    )
    request = replace(request, cluster=replace(request.cluster, groups=(replace(group, nodes=1), request.cluster.groups[1])))
    found = export(plan, request, "accelerate")
    assert '"$((DEVICES * 3))"' in found.command
    assert "8, 4, 4" in " ".join(found.assumptions)


def test_a_strangers_name_stays_a_text() -> None:
    plan, request = training(dp=8, zero_stage=3)
    name = "a'b: [x]\n- $(touch y) #"
    for launcher in FAMILY:
        found = export(replace(plan, model=name), replace(request, model=replace(request.model, name=name)), launcher.value)
        shlex.split(found.command.replace("\\\n", " "))
        for text in found.files.values():
            assert isinstance(yaml.safe_load(text), dict)
        for file, key in (("sft.yaml", "model_name_or_path"), ("axolotl.yaml", "base_model")):
            if file in found.files:
                assert yaml.safe_load(found.files[file])[key] == f"./{name}"


@pytest.mark.slow
def test_random_plans_of_the_search_are_exported_and_broken_ones_are_not() -> None:
    """A few of `benchmarks.launchable_plans`, which has the launchers' own parsers read 300."""
    draw = random.Random(1)
    for case in launchable_plans.cases(Launcher.ACCELERATE, 4):
        for launcher in FAMILY:
            if not (launcher is Launcher.HF_TRAINER and flat(case[0]).stages[0].shard_ranks):
                assert export(*case, launcher.value).command
            with pytest.raises(ExportError):
                export(*launchable_plans.broken(case, draw), launcher.value)
