"""The launcher of a command, found by the words that start it; what stands before them wraps it, what follows are its flags.

A command, or a script around one, is a stranger's text: it is split into words, never run, and nothing that it names is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshwright.app.launching.flags.flag import FlagTable, ParsedCommand
from meshwright.app.launching.flags.serving import TABLES, LaunchFlags
from meshwright.app.service.explaining.launch_files import (
    NO_FILES,
    LaunchFiles,
    config_of,
    documents_of,
    words_of_config,
)
from meshwright.app.service.explaining.launchers.accelerate import (
    read_accelerate,
    read_axolotl,
    read_hf_trainer,
    read_llama_factory,
    read_trl,
)
from meshwright.app.service.explaining.launchers.deepspeed import read_deepspeed
from meshwright.app.service.explaining.launchers.megatron_lm import read_megatron
from meshwright.app.service.explaining.launchers.nanotron import read_nanotron
from meshwright.app.service.explaining.launchers.nemo import is_script_of_nemo, read_nemo, script_of_nemo
from meshwright.app.service.explaining.launchers.recipes import read_recipe
from meshwright.app.service.explaining.launchers.torchtitan import read_torchtitan
from meshwright.app.service.explaining.manifests import manifest_of
from meshwright.app.service.explaining.script import Script, read_commands, read_script
from meshwright.app.service.explaining.start import Start, world_of_starter
from meshwright.app.service.explaining.stated import Stated, StatedServer, StatedTraining
from meshwright.app.service.explaining.wrappers import assigned
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS

_NO_LAUNCHERS = frozenset(
    (
        *("if", "elif", "while", "until", "for", "case", "[", "[[", "test", "echo", "printf", "cat", "ls", "cp", "cd"),
        *(
            "pip",
            "pip3",
            "apt-get",
            "apt",
            "pkill",
            "killall",
            "kill",
            "which",
            "command",
            "git",
            "grep",
            "tail",
            "curl",
            "wget",
        ),
        *(
            "chmod",
            "mkdir",
            "rm",
            "hf",
            "huggingface-cli",
            "sleep",
            "trap",
            "exit",
            "return",
            "source",
            ".",
            "module",
            "ulimit",
        ),
        *(
            "fi",
            "done",
            "esac",
            "then",
            "else",
            "do",
            "{",
            "}",
            "let",
            "read",
            "wait",
            "pushd",
            "popd",
            "tee",
            "date",
            "hostname",
        ),
    )
)
"""First words of commands that name a launcher's file without starting it, or start none."""


_STARTS: Mapping[Launcher, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        Launcher.VLLM: (
            ("vllm", "serve"),
            ("vllm.entrypoints.openai.api_server",),
            ("vllm/entrypoints/openai/api_server.py",),
            ("vllm.entrypoints.api_server",),
            ("dynamo.vllm",),
        ),
        Launcher.SGLANG: (
            ("sglang.launch_server",),
            ("sglang", "serve"),
            ("sglang/launch_server.py",),
            ("sglang_router.launch_server",),
            ("dynamo.sglang",),
        ),
        Launcher.TENSORRT_LLM: (
            ("trtllm-serve", "serve"),
            ("trtllm-serve",),
            ("tensorrt_llm.commands.serve", "serve"),
            ("tensorrt_llm.commands.serve",),
            ("dynamo.trtllm",),
        ),
        Launcher.MEGATRON_LM: (("pretrain_gpt.py",),),
        Launcher.TORCHTITAN: (("torchtitan.train",), ("torchtitan/train.py",), ("run_train.sh",)),
        Launcher.NANOTRON: (("run_train.py",),),
        Launcher.ACCELERATE: (("accelerate", "launch"), ("accelerate-launch",), ("accelerate.commands.launch",)),
        Launcher.TRL: tuple(("trl", method) for method in ("sft", "dpo", "kto", "reward", "grpo", "rloo")),
        Launcher.AXOLOTL: (("axolotl", "train"), ("axolotl.cli.train",)),
        Launcher.LLAMA_FACTORY: (("llamafactory-cli", "train"), ("lmf", "train"), ("llamafactory.launcher",)),
    }
)
"""The words that start each launcher."""

EXAMPLE = "meshwright explain --gpus 8xH100 --isl 2000 --osl 300 --rate 4 -- vllm serve Qwen/Qwen3-8B -tp 4"


_TRAINERS: Mapping[Launcher, Callable[[Start], StatedTraining]] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: read_megatron,
        Launcher.TORCHTITAN: read_torchtitan,
        Launcher.NEMO: read_nemo,
        Launcher.NANOTRON: read_nanotron,
        Launcher.DEEPSPEED: read_deepspeed,
        Launcher.ACCELERATE: read_accelerate,
        Launcher.HF_TRAINER: read_hf_trainer,
        Launcher.TRL: read_trl,
        Launcher.AXOLOTL: read_axolotl,
        Launcher.LLAMA_FACTORY: read_llama_factory,
    }
)
"""Readers of the launchers of training runs."""
_BY_ARGUMENTS: Mapping[Launcher, frozenset[str]] = MappingProxyType(
    {
        Launcher.DEEPSPEED: frozenset(("deepspeed", "deepspeed-config")),
        Launcher.HF_TRAINER: frozenset(
            (
                *(
                    "per-device-train-batch-size",
                    "per-gpu-train-batch-size",
                    "gradient-accumulation-steps",
                    "fsdp",
                    "fsdp-config",
                ),
                *("model-name-or-path", "num-train-epochs", "gradient-checkpointing", "use-peft"),
            )
        ),
    }
)
"""Arguments of scripts by which a launcher is known."""
_CONFIGS: Mapping[str, Launcher] = MappingProxyType(
    {
        **dict.fromkeys(("base_model",), Launcher.AXOLOTL),
        **dict.fromkeys(("finetuning_type", "cutoff_len", "lora_target"), Launcher.LLAMA_FACTORY),
        **dict.fromkeys(("tokens", "data_stages"), Launcher.NANOTRON),
        **dict.fromkeys(("parallelism", "training"), Launcher.TORCHTITAN),
        **dict.fromkeys(("distributed_type", "compute_environment", "num_processes"), Launcher.ACCELERATE),
        **dict.fromkeys(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"), Launcher.DEEPSPEED),
        **dict.fromkeys(("per_device_train_batch_size", "use_peft", "model_name_or_path"), Launcher.TRL),
    }
)
"""Keys by which a configuration that was given alone is known."""


_RECIPES = (
    *(("verl.trainer.main_ppo",), ("verl.trainer.main",), ("verl.trainer.fsdp_sft_trainer",), ("verl.trainer.sft_trainer",)),
    *(("recipe.dapo.main_dapo",), ("megatron_gpt_pretraining.py",), ("megatron_gpt_finetuning.py",), ("run_recipe.py",)),
    *(("nemo", "llm", "pretrain"), ("nemo", "llm", "finetune"), ("examples/run_sft.py",), ("examples/run_grpo.py",)),
    *(("examples/run_dpo.py",), ("examples/run_grpo_math.py",)),
)
"""Starts of recipes, whose keys say on what they train."""
_OF_RECIPES: Mapping[str, Launcher] = MappingProxyType({"run_recipe.py": Launcher.MEGATRON_BRIDGE})
"""Launchers of recipes that are started so; the others are read for their trainer."""
_KEYS_OF_RECIPES = ("actor_rollout_ref", "policy")


def read_command(text: str, files: LaunchFiles = NO_FILES) -> Stated:
    """Return what a launch command, a script around it or a launcher's configuration states.

    ``files`` are those beside it. Raises InvalidInputError for one of no launcher that is known, or one that can't be read.
    """
    if is_script_of_nemo(text):
        return read_nemo(Start((_SCRIPT,), files=files.beside({_SCRIPT: text})))
    documents = documents_of(text)
    manifest = manifest_of(documents)
    if manifest is not None:
        files = files.beside(manifest.files)
        script = (
            read_commands(manifest.commands, files, manifest.job)
            if manifest.script is None
            else replace(read_script(manifest.script, files), job=manifest.job)
        )
    elif documents:
        return _configured(documents[0], files)
    else:
        script = read_script(text, files)
    files = files.beside(script.files)
    for words in script.commands:
        if words[0] in _NO_LAUNCHERS:
            continue
        recipe = next((place + len(start) for start in _RECIPES if (place := _place_of(start, words)) is not None), None)
        if recipe is not None:
            environment = {**script.variables, **assigned(words[:recipe])}
            world = world_of_starter(words[:recipe], environment) or (None if script.job is None else script.job.ranks)
            by = next((each for start, each in _OF_RECIPES.items() if words[recipe - 1].endswith(start)), Launcher.MEGATRON_LM)
            trained = read_recipe(Start(words[recipe:], words[:recipe], world, environment, files), by)
            return replace(trained, notes=(*script.notes, *trained.notes), job=script.job)
        program = _program_of(words, files)
        if program is None:
            continue
        if program.launcher in SERVERS:
            server = _server(program.launcher, program.before, program.own, files)
            return replace(server, notes=(*script.notes, *server.notes), job=script.job)
        environment = {**script.variables, **assigned(program.before)}
        world = world_of_starter(program.before, environment) or (None if script.job is None else script.job.ranks)
        start = Start(program.own, program.before, world, environment, files)
        trained = _TRAINERS[program.launcher](start)
        return replace(trained, notes=(*script.notes, *trained.notes), job=script.job)
    raise _unknown(script)


_MOST_NAMED = 4
_SCRIPT = "nemo_train.py"
"""The name of a script that was given alone."""


def _unknown(script: Script) -> InvalidInputError:
    """The error of a script that starts no launcher: the commands that might have, each with its line."""
    met = [
        (line, " ".join(words[:4])[:80])
        for words, line in zip(script.commands, script.lines, strict=True)
        if words[0] not in _NO_LAUNCHERS and not (words[0].isidentifier() and len(words) == 1)
    ]
    where = f" (line {', '.join(str(line) for line, _ in met[-_MOST_NAMED:])})" if met and script.lines[-1] > 1 else ""
    return InvalidInputError(
        f"this is no launch command that is known{where}",
        given="; ".join(words for _, words in met[-_MOST_NAMED:]) or "nothing that starts a program",
        allowed=", ".join(" ".join(starts[0]) for starts in _STARTS.values()),
        remedy=f"as in: {EXAMPLE}",
    )


_OF_SERVERS: Mapping[str, Launcher] = MappingProxyType(
    {
        **dict.fromkeys(("kv-cache-config", "moe-config"), Launcher.TENSORRT_LLM),
        **dict.fromkeys(("mem-fraction-static", "model-path", "tp-size"), Launcher.SGLANG),
        **dict.fromkeys(("tensor-parallel-size", "gpu-memory-utilization", "max-model-len"), Launcher.VLLM),
    }
)
"""Keys by which the file of a server's flags is known."""


def _configured(document: Mapping[str, Any], files: LaunchFiles) -> Stated:
    """The run of a configuration that was given without a command."""
    if any(isinstance(document.get(key), Mapping) for key in _KEYS_OF_RECIPES) or _is_megatron_recipe(document):
        return read_recipe(Start(files=files, document=document))
    for key, launcher in _CONFIGS.items():
        if key in document:
            return _TRAINERS[launcher](Start(files=files, document=document))
    keys = {str(key).replace("_", "-") for key in document}
    for key, launcher in _OF_SERVERS.items():
        if key in keys:
            given = files.beside({_GIVEN: json.dumps(document)})
            return _server(launcher, (), ("--config", _GIVEN), given)
    raise InvalidInputError(
        "this is no configuration of a launcher that is known",
        given=", ".join(map(str, [*document][:6])) or "no keys",
        allowed=f"a configuration with one of the keys {', '.join(_CONFIGS)}, or a launch command",
    )


_GIVEN = "the configuration"


def _is_megatron_recipe(document: Mapping[str, Any]) -> bool:
    """True of configurations of NeMo and Megatron-Bridge, whose model has Megatron-Core's degrees."""
    model = document.get("model")
    return isinstance(model, Mapping) and "tensor_model_parallel_size" in model


@dataclass(frozen=True, slots=True)
class _LaunchedProgram:
    """A launcher with the words before it and its own."""

    launcher: Launcher
    before: Sequence[str]
    own: Sequence[str]


def _program_of(words: Sequence[str], files: LaunchFiles) -> _LaunchedProgram | None:
    """The launcher that a command starts: by its own words, else by the arguments of the script that is started."""
    for launcher, starts in _STARTS.items():
        for start in starts:
            place = _place_of(start, words)
            if place is not None:
                return _LaunchedProgram(launcher, words[:place], words[place + len(start) :])
    script = _place_of_script(words)
    if script is None:
        return None
    before, own = words[:script], words[script + 1 :]
    if script_of_nemo(words[script], files) is not None:
        return _LaunchedProgram(Launcher.NEMO, before, words[script:])
    names = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in own if word.startswith("--")}
    for launcher, arguments in _BY_ARGUMENTS.items():
        if names & arguments:
            return _LaunchedProgram(launcher, before, own)
    by_file = _launcher_of_settings(own, files)
    if by_file is not None:
        return _LaunchedProgram(by_file, before, own)
    return _LaunchedProgram(Launcher.DEEPSPEED, before, own) if _place_of(("deepspeed",), before) is not None else None


def _place_of_script(words: Sequence[str]) -> int | None:
    """The place of the script, or of the module behind -m, that a command starts."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return place
        if word == "-m" and place > 0 and words[place - 1].rpartition("/")[2].startswith(("python", "torchrun")):
            following = words[place + 1] if place + 1 < len(words) else ""
            if following not in _MODULES_THAT_START:
                return place + 1 if following else None
        if word in ("-m", "--module") and any(
            each.endswith("torchrun") or each in _MODULES_THAT_START for each in words[:place]
        ):
            return place + 1 if place + 1 < len(words) else None
    return None


_MODULES_THAT_START = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner")


def _launcher_of_settings(own: Sequence[str], files: LaunchFiles) -> Launcher | None:
    """The launcher of a script whose arguments are in a file, by the keys of that file."""
    named = own[0] if own and own[0].endswith((".yaml", ".yml")) else None
    if named is None and "--config" in own[:-1]:
        named = own[list(own).index("--config") + 1]
    text = None if named is None else files.named(named)
    document = None if text is None else config_of(text)
    if document is None:
        return None
    return next((launcher for key, launcher in _CONFIGS.items() if key in document), None)


def _place_of(wanted: Sequence[str], words: Sequence[str]) -> int | None:
    """The place of the first of a launcher's words; a path before a program's name is not looked at."""
    for place in range(len(words) - len(wanted) + 1):
        if f"/{words[place]}".endswith(f"/{wanted[0]}") and tuple(words[place + 1 : place + len(wanted)]) == tuple(wanted[1:]):
            return place
    return None


def _server(launcher: Launcher, before: Sequence[str], own: Sequence[str], files: LaunchFiles) -> StatedServer:
    engine = SERVERS[launcher].engine
    table = TABLES[engine]
    read = table.read(own)
    named = read.fields.get("config_file")
    notes = _of_pools(own)
    text = None if named is None else files.named(named)
    if named is not None and text is None:
        notes = (f"{named} was not given, and what it says is not in the figures: give it by --with", *notes)
    if named is not None and text is not None:
        settings = table.read(_settings(text, named, table))
        # TensorRT-LLM's file holds over its command, others' commands over their files.
        first, second = (read, settings) if engine is ServingEngine.TENSORRT_LLM else (settings, read)
        words = (*read.words, *settings.words)
        read = ParsedCommand({**first.fields, **second.fields}, (*first.given, *second.given), words)
    flags = LaunchFlags(**read.fields)
    model = flags.model or next(iter(read.words), None)
    return StatedServer(launcher, flags, model, read.given, assigned(before), notes)


def _settings(text: str, named: str, table: FlagTable) -> list[str]:
    """The flags that a server's file says: switches where they are on, and what a flag takes as JSON as that."""
    document = config_of(text)
    if document is None:
        raise InvalidInputError("the file of the server's flags is no YAML", given=named)
    words: list[str] = []
    for name, value in document.items():
        flag = str(name).replace("_", "-")
        known = table.by_name.get(flag)
        if isinstance(value, bool) and (known is None or known.read is None):
            words += [f"--{flag}"] if value else []
        elif isinstance(value, Mapping) and known is not None:
            words.append(f"--{flag}={json.dumps(value)}")
        else:
            words += words_of_config({str(name): value})
    return words


_POOLS = frozenset(
    ("is-prefill-worker", "is-decode-worker", "disaggregation-mode", "disaggregation-strategy", "kv-transfer-config")
)


def _of_pools(own: Sequence[str]) -> tuple[str, ...]:
    if _POOLS & {word.partition("=")[0].lstrip("-").replace("_", "-") for word in own}:
        return ("this is one server of several that share prompts and answers: it is priced as one that answers alone",)
    return ()
