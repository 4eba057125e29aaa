"""Flags that are cut short: what argparse makes of each is what tables make of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from meshwright.app.launching.launchers.accelerate import ACCELERATE
from meshwright.app.launching.launchers.megatron_lm import MEGATRON_LM
from meshwright.app.launching.launchers.nanotron import NANOTRON
from meshwright.app.launching.launchers.sglang import SGLANG
from meshwright.app.launching.launchers.tensorrt_llm import TENSORRT_LLM
from meshwright.app.launching.launchers.trainer import HF_TRAINER
from meshwright.app.launching.launchers.vllm import VLLM
from meshwright.app.launching.parts.flag import FlagTable, ShortNames, Standing
from meshwright.app.launching.parts.start import DEEPSPEED_RUNNER, TORCHRUN
from meshwright.app.launching.parts.stated import StatedServer
from meshwright.app.launching.reading import read_command
from meshwright.costmodels.errors import InvalidInputError

BY_ARGPARSE = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "nanotron": NANOTRON,
    "torchrun": TORCHRUN,
    "deepspeed": DEEPSPEED_RUNNER,
    "trainer": HF_TRAINER,
}


def _long(table: FlagTable) -> list[str]:
    every = (*table.by_name, *table.harmless, *table.not_priced)
    return [name for name in every if len(name) > 3 and "." not in name]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser(table: FlagTable) -> argparse.ArgumentParser:
    """A parser of argparse with the long names of a table, each under one destination."""
    parser = _Parser(add_help=False)
    known: set[str] = set()
    for name in _long(table):
        flag = table.by_name.get(name)
        names = [name] if flag is None else [each for each in flag.names if len(each) > 3 and "." not in each]
        if known.isdisjoint(names):
            parser.add_argument(*(f"--{each}" for each in names), dest=name, nargs="?", const="on")
            known.update(names)
    return parser


def _beginnings(table: FlagTable) -> Iterator[str]:
    yield from sorted({name[:end] for name in _long(table) for end in range(1, len(name) + 1) if not name[:end].endswith("-")})


@pytest.mark.parametrize("name", BY_ARGPARSE)
def test_each_beginning_of_a_name_is_what_argparse_makes_of_it(name: str) -> None:
    table = replace(BY_ARGPARSE[name], short_names=ShortNames.ARGPARSE)
    parser = _parser(table)
    for begin in _beginnings(table):
        if table.whole_names(f"--{begin}") == (begin,):
            continue
        # Of several spellings of one flag argparse asks for a whole one; they say the same here.
        one_flag = len(table.whole_names(f"--{begin}")) == 1
        try:
            (said,) = (key for key, value in vars(parser.parse_args([f"--{begin}"])).items() if value is not None)
        except ValueError:
            if not one_flag:
                with pytest.raises(InvalidInputError, match="could be several"):
                    table.read([f"--{begin}", "1"])
            continue
        found = table.whole_names(f"--{begin}")
        assert len(found) == 1, begin
        flag = table.by_name.get(said)
        assert found[0] == said or (flag is not None and found[0] in flag.names), begin


@pytest.mark.parametrize("table", [ACCELERATE, MEGATRON_LM, TENSORRT_LLM], ids=["accelerate", "megatron-lm", "tensorrt-llm"])
def test_parsers_without_short_names_know_whole_names_alone(table: FlagTable) -> None:
    """Accelerate and Megatron-LM set ``allow_abbrev=False``; click has none."""
    for name in _long(table):
        cut = name[:-1]
        assert table.whole_names(f"--{cut}") == ((cut,) if cut in _long(table) else ())


def test_the_flags_of_a_server_that_are_cut_short_decide_its_plan() -> None:
    found = read_command("vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel 8 --max_model=32768")
    assert isinstance(found, StatedServer)
    assert (found.flags.tp, found.flags.longest) == (8, 32768)
    assert [flag.why for flag in found.given] == ["short for --tensor-parallel-size", "short for --max-model-len"]


def test_a_flag_that_could_be_several_is_refused_as_argparse_refuses_it() -> None:
    with pytest.raises(InvalidInputError, match="could be several") as refused:
        read_command("vllm serve a/model --max-num 8")
    assert "--max-num-seqs" in str(refused.value.allowed)
    assert "--max-num-batched-tokens" in str(refused.value.allowed)


def test_a_flag_of_a_script_that_could_be_several_is_told_and_not_read() -> None:
    read = HF_TRAINER.read(["--per_device", "4", "--lr", "1e-5", "--gradient_acc", "2"])
    assert dict(read.fields) == {"accumulation": 2}
    told = {flag.name: flag for flag in read.given}
    assert told["--per_device"].standing is Standing.UNKNOWN
    assert "--per-device-train-batch-size" in told["--per_device"].why
    assert told["--lr"] == replace(told["--lr"], standing=Standing.UNKNOWN, why=""), "the script's own, or harmless"


def test_names_behind_one_hyphen_are_not_cut_short() -> None:
    assert VLLM.whole_names("-tensor-parallel") == ()
    assert VLLM.whole_names("--") == ()
