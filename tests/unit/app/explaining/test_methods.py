"""Runs that are more than predicting the next token: what is not counted is said, whoever launches them."""

from __future__ import annotations

import pytest

from meshwright.app.launching.launchers.table import TRAINING
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.methods import METHODS, method_of, not_counted
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of, explained
from meshwright.solver.problem.choices import Launcher
from tests.unit.app.explaining.resolving import resolve

ARGUMENTS = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 1024 --bf16"
SUBCOMMANDS = [words[1] for words in TRAINING[Launcher.TRL].starts]
WORDS = {
    "dpo": ("pairs", "reference"),
    "kto": ("reference", "second forward pass"),
    "reward": ("pairs", "head of scores"),
    "grpo": ("rollouts", "rewards", "reference"),
    "rloo": ("rollouts", "rewards", "reference"),
    "ppo": ("rollouts", "values", "reference"),
}


def _stated(text: str, files: LaunchFiles | None = None) -> StatedTraining:
    found = read_command(text, files or LaunchFiles({}))
    assert isinstance(found, StatedTraining)
    return found


@pytest.mark.parametrize("method", SUBCOMMANDS)
def test_each_subcommand_of_trl_says_what_is_not_counted(method: str) -> None:
    said = _stated(f"trl {method} {ARGUMENTS}").not_counted
    assert bool(said) == (method != "sft")
    assert all(word in " ".join(said) for word in WORDS.get(method, ()))


@pytest.mark.parametrize("method", ["dpo", "kto", "reward", "grpo", "ppo"])
@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes 8 {method}.py",
        "accelerate launch --num_processes 8 -m trl.scripts.{method}",
        "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3 scripts/run_{method}.py",
        "torchrun --nproc_per_node 8 examples/scripts/{method}_vlm.py",
        "deepspeed --num_gpus 8 train_{method}.py --deepspeed ds.json",
        "llamafactory-cli train --stage {method} --cutoff_len 512",
    ],
)
def test_it_does_not_matter_who_launches_the_method(command: str, method: str) -> None:
    files = LaunchFiles({"ds.json": '{"zero_optimization": {"stage": 2}}'})
    said = _stated(f"{command.format(method=method)} {ARGUMENTS}", files).not_counted
    assert said == not_counted(method)


def test_keys_of_files_say_the_method() -> None:
    llama_factory = LaunchFiles({"a.yaml": "stage: rm\nmodel_name_or_path: a/b\nfinetuning_type: lora\ncutoff_len: 512\n"})
    axolotl = LaunchFiles({"a.yaml": "rl: ipo\nbase_model: a/b\nsequence_len: 512\nmicro_batch_size: 1\n"})
    assert _stated("llamafactory-cli train a.yaml", llama_factory).not_counted == not_counted("rm")
    assert _stated("axolotl train a.yaml", axolotl).not_counted == not_counted("ipo")
    assert _stated("axolotl train a.yaml", LaunchFiles({"a.yaml": "base_model: a/b\nsequence_len: 512\n"})).not_counted == ()


def test_no_other_command_is_called_better_than_a_run_that_is_not_counted_whole() -> None:
    for method in SUBCOMMANDS:
        asked = asked_of(f"trl {method} {ARGUMENTS} --accelerate_config zero3", OneLine("llama-3.1-8b", gpus="8xH100"), resolve)
        found = explained(asked)
        assert bool(found.none_better) == bool(found.not_counted) == (method != "sft")


def test_a_name_says_a_method_only_as_a_word_of_its_own() -> None:
    assert {method_of(f"run_{name}.py") for name in METHODS} == METHODS
    assert method_of("finetune.py", None, "", "sft", "pt", "/home/dpo/train.py", "gripo.py") is None
