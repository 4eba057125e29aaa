"""What assistants are answered, without a server: the tools' own process is this one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.cli.commands import assistant_tools
from meshwright.app.cli.commands.assistant_tools import MOST_CHARACTERS, READ, SCHEME, answered
from meshwright.costmodels.errors import InvalidInputError
from tests.support.command_line import Cli
from tests.support.requests_given import TINY_CONFIG, serving, tiny_graph, training
from tests.unit.app.validation.tables import write_table

WORDS = {"model": "llama-3.1-8b", "gpus": "8xH100", "batch": 64, "seq": 4096}
TINY = training(
    model={"graph": tiny_graph()}, search={"tp": [1], "pp": [1], "cp": [1], "microbatch": [1], "recompute": ["none"]}
)


@pytest.fixture(autouse=True)
def store(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a plan store of its own, and be where no file of a request is looked for."""
    monkeypatch.chdir(cli.folder)


def ask(tool: str, **arguments: Any) -> str:
    return str(answered({"tool": tool, "arguments": arguments})["text"])


def read(path: str) -> Any:
    return json.loads(ask(READ, uri=SCHEME + path))


def digest_in(page: str) -> str:
    return next(word for word in page.split() if word.startswith("sha256:"))


def test_a_plan_is_the_page_of_the_command_line_and_can_be_read_by_its_digest(cli: Cli) -> None:
    page = ask("plan", request=TINY)
    assert cli("plan", cli.write("request.json", TINY)) == 0
    assert [line.rstrip() for line in cli.out.splitlines()] == page.splitlines()
    plan = read(f"plans/{digest_in(page)}")
    assert plan["feasible"] and plan["digest"] == digest_in(page)
    assert read("plans")["newest"][0]["digest"] == plan["digest"]
    assert read(f"plans/{digest_in(page)}/certificate/status") == plan["certificate"]["status"]


def test_a_given_plan_is_predicted_for_its_own_request_and_for_another() -> None:
    digest = digest_in(ask("plan", request=TINY))
    own = ask("predict", plan=digest)
    assert "A given plan meets every constraint" in own
    assert ask("predict", plan=digest, request=TINY) == own
    longer = TINY | {"workload": TINY["workload"] | {"seq_len": 2 * TINY["workload"]["seq_len"]}}
    assert ask("predict", plan=read(f"plans/{digest}"), request=longer) != own


def test_what_if_shows_both_answers() -> None:
    page = ask("what_if", request=TINY, change={"workload.seq_len": 256})
    assert "Changed: workload.seq_len to 256" in page and "as asked:" in page and "changed:" in page
    assert len(read("plans")["newest"]) == 2


def test_a_run_is_stored_but_not_in_a_dry_run() -> None:
    digest = digest_in(ask("plan", request=TINY))
    step_s = read(f"plans/{digest}/predicted/step_time_s")
    assert "Nothing is stored" in ask("observe", plan=digest, step_time=f"{step_s}s", dry_run=True)
    assert "Stored; what runs here have told" in ask("observe", plan=digest, step_time=f"{step_s}s")


def test_no_file_is_read_that_a_call_names(cli: Cli) -> None:
    graph, config = cli.write("graph.json", tiny_graph()), cli.write("config.json", TINY_CONFIG)
    plan = cli.write("plan.json", read(f"plans/{digest_in(ask('plan', request=TINY))}"))
    trace = {"process": "trace", "file": config}
    calls: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("plan", {"request": TINY | {"model": {"graph": graph}}}, "files can't be named"),
        ("plan", {"request": TINY | {"model": {"huggingface": config}}}, "files can't be named"),
        ("plan", {"request": serving() | {"workload": serving()["workload"] | {"arrivals": trace}}}, "files can't be named"),
        ("plan", {"request": WORDS | {"model": config}}, "the catalogue has no such model"),
        ("compare", {"request": WORDS | {"model": config, "gpus": "8xH100,8xA100"}}, "the catalogue has no such model"),
        ("what_if", {"request": TINY, "change": {"model": {"graph": graph}}}, "files can't be named"),
        ("predict", {"plan": plan}, "named by its digest"),
        ("observe", {"plan": plan, "step_time": "1s"}, "named by its digest"),
        ("export", {"plan": plan, "to": "megatron-lm"}, "named by its digest"),
        ("explain", {"command": f"vllm serve {config}", "cluster": "8xH100", "isl": 9, "osl": 9, "rate": 1}, "no such model"),
    )
    for tool, arguments, said in calls:
        with pytest.raises(InvalidInputError, match=said):
            ask(tool, **arguments)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("plan", {}, "request: field is missing"),
        ("plan", {"request": WORDS, "ful": True}, "did you mean 'full'"),
        ("plan", {"request": WORDS | {"batchs": 3}}, "did you mean 'batch'"),
        ("plan", {"request": WORDS | {"model": "lama-3.1-8b"}}, "did you mean 'llama-3.1-8b'"),
        ("plan", {"request": WORDS | {"gpus": "8xH100,8xA100"}}, "ask 'compare'"),
        ("plan", {"request": TINY | {"search": {"time_limit_s": 3600}}}, "longer than this service solves"),
        ("plan", {"request": WORDS | {"model": "a\x1b[2Jb"}}, "characters that can't be used"),
        ("compare", {"request": WORDS}, "ask 'plan'"),
        ("compare", {"request": TINY}, "unknown field"),
        ("what_if", {"request": WORDS, "change": {}}, "the change is missing"),
        ("what_if", {"request": WORDS, "change": {"seqs": 1}}, "did you mean 'seq'"),
        ("what_if", {"request": TINY, "change": {"schema.x": 1}}, "a change is of a field"),
        ("what_if", {"request": TINY, "change": {".".join("a" * 9_999): 1}}, "unknown field"),
        ("observe", {"plan": "plan.json", "step_time": "1s"}, "named by its digest"),
        ("observe", {"plan": "sha256:00000000", "step_time": "1s"}, "no plan is stored"),
        ("export", {"plan": "sha256:00000000", "to": "vllm"}, "no plan is stored"),
        ("validate", {"table": "a,b\n1,2\n"}, "columns"),
        (READ, {"uri": "file:///etc/passwd"}, "there is no such resource"),
        (READ, {"uri": f"{SCHEME}models/x"}, "no such part; given: 'x'; allowed: models"),
        (READ, {"uri": f"{SCHEME}schemas/request/x"}, "no such part"),
        (READ, {"uri": f"{SCHEME}plans/../../etc/passwd"}, "named by its digest"),
    ],
)
def test_errors_are_those_of_the_command_line(tool: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        ask(tool, **arguments)
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)


def test_every_part_of_every_schema_can_be_read_within_the_size_of_an_answer() -> None:
    """What an answer leaves out it names, and what it names can be read."""
    waiting = [f"{SCHEME}schemas/{name}" for name in read("schemas")]
    seen = 0
    while waiting:
        text = ask(READ, uri=waiting.pop())
        assert len(text) <= MOST_CHARACTERS
        seen += 1
        document = json.loads(text)
        values = document.values() if isinstance(document, dict) else ()
        # Parts of $defs are many: those of one schema stand for all.
        waiting += [value.split(", in ")[1] for value in values if str(value).startswith("left out: ")][:3]
    assert seen > len(read("schemas"))


def test_what_is_left_out_of_a_list_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assistant_tools, "MOST_CHARACTERS", 2_000)
    models = json.loads(ask(READ, uri=f"{SCHEME}models/models"))
    assert models[-1].startswith("left out: ") and f"{SCHEME}models/models/{len(models) - 1} and after" in models[-1]
    assert ask(READ, uri=f"{SCHEME}models/models/{len(models) - 1}")


def test_a_page_that_is_too_long_says_how_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ask("plan", request=TINY, full=True)
    monkeypatch.setattr(assistant_tools, "MOST_CHARACTERS", 500)
    cut = ask("plan", request=TINY, full=True)
    assert len(cut) < 600 and f"of {len(whole):,} characters" in cut
    kept = cut.split("\nLeft out: ")[0]
    assert whole.startswith(kept) and kept.endswith("\n")


def test_a_table_is_validated_from_its_text(cli: Cli) -> None:
    table = write_table(cli.folder / "measured.csv", {}, {"seq_len": "2048", "step_time_s": "5"})
    page = ask("validate", table=table.read_text())
    assert "2 of 2" in page and "median" in page


def test_without_the_package_the_command_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert cli("mcp") == 2
    assert cli.out == "" and cli.err.count("\n") == 1 and "pip install 'meshwright[mcp]'" in cli.err


def test_a_faulty_call_lists_all_its_faults() -> None:
    with pytest.raises(DocumentError) as error:
        ask("predict", plans="sha256:00000000", ful=1)
    assert {fault.field for fault in error.value.fields} == {"plan", "plans", "ful"}
