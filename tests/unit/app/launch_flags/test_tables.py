"""Tables of flags: each spelling stands for one thing, and each flag of a command has a standing."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshwright.app.launching.launchers.table import FLAGS, SERVING, TRAINING, launch_flags, launchers_by_key
from meshwright.app.launching.parts.flag import FlagTable, GivenFlag, Standing, words_of
from meshwright.app.launching.parts.serving import LaunchFlags, ServerDegrees, degrees
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher

VLLM = FLAGS[ServingEngine.VLLM]


def test_a_launcher_that_is_known_by_something_is_read() -> None:
    known = {name for name, each in TRAINING.items() if each.starts or each.arguments or each.keys}
    assert known == {name for name, each in TRAINING.items() if each.read is not None} - {Launcher.NEMO}, "NeMo by its script"


def test_a_key_of_files_of_several_launchers_is_looked_for_last() -> None:
    first = {launcher: place for place, launcher in reversed(list(enumerate(launchers_by_key(TRAINING).values())))}
    # Axolotl's files have `tokens` too, nanotron's `parallelism`, LLaMA-Factory's `model_name_or_path`.
    assert first[Launcher.AXOLOTL] < first[Launcher.NANOTRON] < first[Launcher.TORCHTITAN]
    assert first[Launcher.LLAMA_FACTORY] < first[Launcher.TRL]
    of_servers = [*launchers_by_key(SERVING).values()]
    assert of_servers.index(Launcher.TENSORRT_LLM) < of_servers.index(Launcher.SGLANG) < of_servers.index(Launcher.VLLM)


@pytest.mark.parametrize("table", FLAGS.values(), ids=FLAGS)
def test_a_spelling_stands_in_one_place(table: FlagTable) -> None:
    spellings = [name for flag in table.flags for name in flag.names]
    everywhere = [*spellings, *table.harmless, *table.not_priced]
    assert len(everywhere) == len(set(everywhere))
    assert table.switches <= table.not_priced.keys()
    assert not [name for name in everywhere if "_" in name or name.startswith("-")]


@pytest.mark.parametrize("table", FLAGS.values(), ids=FLAGS)
def test_flags_say_fields_of_the_record(table: FlagTable) -> None:
    assert {flag.field for flag in table.flags} <= {each.name for each in fields(LaunchFlags)}


def test_every_word_of_a_command_is_accounted_for() -> None:
    read = VLLM.read(
        words_of("a/model -tp 4 --port=80 --enforce-eager --foo bar --dtype $DTYPE --trust-remote-code \\\n -pp 2")
    )
    assert read.words == ("a/model",)
    assert dict(read.fields) == {"tp": 4, "pp": 2}
    standings = {flag.name: flag.standing for flag in read.given}
    assert standings == {
        "-tp": Standing.READ,
        "--port": Standing.HARMLESS,
        "--enforce-eager": Standing.NOT_PRICED,
        "--foo": Standing.UNKNOWN,
        "--dtype": Standing.NOT_PRICED,
        "--trust-remote-code": Standing.HARMLESS,
        "-pp": Standing.READ,
    }
    assert next(flag for flag in read.given if flag.name == "--foo").value == "bar"
    assert all(flag.why for flag in read.given if flag.standing is Standing.NOT_PRICED)


def test_a_switch_takes_no_value_and_the_last_flag_holds() -> None:
    read = VLLM.read(words_of("--enforce-eager model --enable-expert-parallel -tp 2 -tp 8"))
    assert (read.words, dict(read.fields)) == (("model",), {"ep": 0, "tp": 8})
    assert GivenFlag("--enforce-eager", None, Standing.NOT_PRICED, VLLM.not_priced["enforce-eager"]) in read.given


def test_lengths_of_vllm_have_units() -> None:
    found = launch_flags(ServingEngine.VLLM, "vllm serve x --max-model-len 8k --max-num-batched-tokens 8K")
    assert (found.longest, found.step_tokens) == (8000, 8192)


@pytest.mark.parametrize(
    ("engine", "command", "expected"),
    [
        (ServingEngine.VLLM, "-tp 8 -dcp 2", ServerDegrees(1, 4, 1, 1, 1, kvp=2)),
        (ServingEngine.SGLANG, "--tp 8 --attn-dp-size 4 --ep 8", ServerDegrees(1, 2, 1, 8, 4)),
        (ServingEngine.SGLANG, "--tp 8 --attn-cp-size 2", ServerDegrees(1, 4, 1, 1, 1, cp=2)),
        (ServingEngine.SGLANG, "--tp 2 --dp 4", ServerDegrees(4, 2, 1, 1, 1)),
    ],
)
def test_degrees_of_a_server(engine: ServingEngine, command: str, expected: ServerDegrees) -> None:
    found = degrees(launch_flags(engine, command), engine, experts=True)
    assert found == expected
    assert found.devices * found.replicas == 8


def test_caches_that_no_degree_splits() -> None:
    with pytest.raises(InvalidInputError, match="3 ways over 8 devices"):
        degrees(LaunchFlags(tp=8, kvp=3), ServingEngine.VLLM, experts=False)
