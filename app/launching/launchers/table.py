"""Every launcher: how a plan becomes its command, how its command is read, and by what it is known.

Launchers change their flags with every release, so each module names the release that it writes for. What a launcher can start
at all is in `solver.problem.launchers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.app.launching.launchers import (
    accelerate,
    axolotl,
    deepspeed,
    hf_trainer,
    llama_factory,
    maxtext,
    megatron_bridge,
    megatron_core,
    megatron_lm,
    nanotron,
    nemo,
    pytorch,
    sglang,
    tensorrt_llm,
    torchtitan,
    torchtitan_runs,
    trl,
    vllm,
)
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import FlagTable, words_of
from meshwright.app.launching.parts.serving import LaunchFlags
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import ServingRequest, TrainingRequest

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingLauncher:
    """A launcher of training runs.

    export     a plan as its command
    read       its command in the words of plans; None of one that is not read, or whose runs are recipes
    starts     the words that start it
    recipes    the words that start recipes which train by it
    arguments  arguments of a script by which it is known
    keys       keys by which a configuration of its own is known
    turn       the turn in which those are looked for: keys that files of others have too come later
    """

    export: Callable[[Plan, TrainingRequest], Export]
    read: Callable[[Start], StatedTraining] | None = None
    starts: tuple[Words, ...] = ()
    recipes: tuple[Words, ...] = ()
    arguments: frozenset[str] = frozenset()
    keys: Words = ()
    turn: int = 0


@dataclass(frozen=True, slots=True)
class ServingLauncher:
    """A launcher of servers.

    export  a plan as its command
    flags   what its command says
    starts  the words that start it
    keys    keys by which a file of its flags is known
    turn    the turn in which those are looked for: keys that files of others have too come later
    """

    export: Callable[[Plan, ServingRequest], Export]
    flags: FlagTable
    starts: tuple[Words, ...]
    keys: Words
    turn: int = 0


TRAINING: Mapping[Launcher, TrainingLauncher] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: TrainingLauncher(
            megatron_core.export_plan,
            megatron_lm.read_run,
            starts=(("pretrain_gpt.py",),),
            recipes=(
                *(("verl.trainer.main_ppo",), ("verl.trainer.main",), ("verl.trainer.fsdp_sft_trainer",)),
                *(("verl.trainer.sft_trainer",), ("recipe.dapo.main_dapo",)),
                *(("megatron_gpt_pretraining.py",), ("megatron_gpt_finetuning.py",)),
                *(("nemo", "llm", "pretrain"), ("nemo", "llm", "finetune")),
                *(("examples/run_sft.py",), ("examples/run_grpo.py",), ("examples/run_dpo.py",)),
                ("examples/run_grpo_math.py",),
            ),
        ),
        Launcher.MEGATRON_BRIDGE: TrainingLauncher(megatron_bridge.export_plan, recipes=(("run_recipe.py",),)),
        Launcher.NEMO: TrainingLauncher(nemo.export_plan, nemo.read_run),
        Launcher.DEEPSPEED: TrainingLauncher(
            deepspeed.export_plan,
            deepspeed.read_run,
            arguments=frozenset(("deepspeed", "deepspeed-config")),
            keys=("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
            turn=3,
        ),
        Launcher.TORCHTITAN: TrainingLauncher(
            torchtitan.export_plan,
            torchtitan_runs.read_run,
            starts=(("torchtitan.train",), ("torchtitan/train.py",), ("run_train.sh",)),
            keys=("parallelism", "training"),
            turn=2,
        ),
        Launcher.PYTORCH: TrainingLauncher(pytorch.export_plan),
        Launcher.NANOTRON: TrainingLauncher(
            nanotron.export_plan,
            nanotron.read_run,
            starts=(("run_train.py",),),
            keys=("tokens", "data_stages"),
            turn=1,
        ),
        Launcher.MAXTEXT: TrainingLauncher(
            maxtext.export_plan,
            maxtext.read_run,
            starts=(("maxtext.trainers.pre_train.train",), ("pre_train/train.py",), ("MaxText.train",), ("MaxText/train.py",)),
            keys=("ici_fsdp_parallelism", "per_device_batch_size", "base_emb_dim"),
        ),
        Launcher.ACCELERATE: TrainingLauncher(
            accelerate.export_plan,
            accelerate.read_run,
            starts=(("accelerate", "launch"), ("accelerate-launch",), ("accelerate.commands.launch",)),
            keys=("distributed_type", "compute_environment", "num_processes"),
            turn=2,
        ),
        Launcher.HF_TRAINER: TrainingLauncher(
            hf_trainer.export_plan,
            hf_trainer.read_run,
            arguments=frozenset(
                (
                    *("per-device-train-batch-size", "per-gpu-train-batch-size", "gradient-accumulation-steps", "fsdp"),
                    *("fsdp-config", "model-name-or-path", "num-train-epochs", "gradient-checkpointing", "use-peft"),
                )
            ),
        ),
        Launcher.TRL: TrainingLauncher(
            trl.export_plan,
            trl.read_run,
            starts=tuple(("trl", method) for method in ("sft", "dpo", "kto", "reward", "grpo", "rloo")),
            keys=("per_device_train_batch_size", "use_peft", "model_name_or_path"),
            turn=3,
        ),
        Launcher.AXOLOTL: TrainingLauncher(
            axolotl.export_plan,
            axolotl.read_run,
            starts=(("axolotl", "train"), ("axolotl.cli.train",)),
            keys=("base_model",),
        ),
        Launcher.LLAMA_FACTORY: TrainingLauncher(
            llama_factory.export_plan,
            llama_factory.read_run,
            starts=(("llamafactory-cli", "train"), ("lmf", "train"), ("llamafactory.launcher",)),
            keys=("finetuning_type", "cutoff_len", "lora_target"),
        ),
    }
)
SERVING: Mapping[Launcher, ServingLauncher] = MappingProxyType(
    {
        Launcher.VLLM: ServingLauncher(
            vllm.export_plan,
            vllm.VLLM,
            starts=(
                ("vllm", "serve"),
                ("vllm.entrypoints.openai.api_server",),
                ("vllm/entrypoints/openai/api_server.py",),
                ("vllm.entrypoints.api_server",),
                ("dynamo.vllm",),
            ),
            keys=("tensor-parallel-size", "gpu-memory-utilization", "max-model-len"),
            turn=2,
        ),
        Launcher.SGLANG: ServingLauncher(
            sglang.export_plan,
            sglang.SGLANG,
            starts=(
                ("sglang.launch_server",),
                ("sglang", "serve"),
                ("sglang/launch_server.py",),
                ("sglang_router.launch_server",),
                ("dynamo.sglang",),
            ),
            keys=("mem-fraction-static", "model-path", "tp-size"),
            turn=1,
        ),
        Launcher.TENSORRT_LLM: ServingLauncher(
            tensorrt_llm.export_plan,
            tensorrt_llm.TENSORRT_LLM,
            starts=(
                ("trtllm-serve", "serve"),
                ("trtllm-serve",),
                ("tensorrt_llm.commands.serve", "serve"),
                ("tensorrt_llm.commands.serve",),
                ("dynamo.trtllm",),
            ),
            keys=("kv-cache-config", "moe-config"),
        ),
    }
)
STARTS: Mapping[Launcher, tuple[Words, ...]] = MappingProxyType(
    {launcher: each.starts for table in (SERVING, TRAINING) for launcher, each in table.items() if each.starts}
)
"""The words that start each launcher that has some."""
FLAGS: Mapping[ServingEngine, FlagTable] = MappingProxyType(
    {SERVERS[launcher].engine: each.flags for launcher, each in SERVING.items()}
)
"""The flags of each serving engine."""


def launchers_by_key(table: Mapping[Launcher, TrainingLauncher | ServingLauncher]) -> Mapping[str, Launcher]:
    """Return the launcher that each key of a configuration is of, in the order in which they are looked for."""
    by_turn = sorted(table.items(), key=lambda item: item[1].turn)
    return MappingProxyType({key: launcher for launcher, each in by_turn for key in each.keys})


def launch_flags(engine: ServingEngine, command: str) -> LaunchFlags:
    """Return the known flags of a launch command; others are passed over.

    Raises InvalidInputError for a command that is not one line of a shell or a value that the engine would refuse.
    """
    return LaunchFlags(**FLAGS[engine].read(words_of(command)).fields)
