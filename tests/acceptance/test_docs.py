"""The documentation is true: nothing is left out, and what it shows runs."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from meshwright.app.base.errors import EXIT_BAD_INPUT, EXIT_GOOD, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_NO, EXIT_PIPE
from meshwright.app.base.settings import VARIABLES, Settings
from meshwright.app.edge.problems import KINDS
from meshwright.app.evidence.measuring.sample_files import write_samples
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.limits import REQUEST_LIMITS
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.web.json_schemas import json_schema
from meshwright.app.web.main import create_app
from meshwright.costmodels.units import DType
from tests.acceptance.docs_cases import ROOT, page
from tests.support.command_line import SHARDING_PROBLEM, Cli
from tests.support.requests_given import training
from tests.unit.costmodels.measurements import toy_samples


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def fields_and_choices(schema: Mapping[str, Any]) -> Iterator[str]:
    """Every field name and every choice of an enumeration that a JSON Schema has, at any depth."""
    for node in (schema, *schema.get("$defs", {}).values()):
        yield from node.get("properties", {})
        yield from node.get("enum", ())


def named(text: str) -> set[str]:
    """Words that a page names as code."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.split(r"[^\w.-]+", code)}


def test_every_field_of_a_request_is_described() -> None:
    assert set(fields_and_choices(json_schema("request"))) - named(page("request-format.md")) == set()


def test_every_field_of_a_plan_is_described() -> None:
    request_only = set(fields_and_choices(json_schema("request")))
    described = named(page("plan-format.md"))
    assert set(fields_and_choices(json_schema("plan"))) - request_only - described == set()
    schema = json_schema("plan")
    answers = ("Certificate", "Predicted", "Axes", "Stage", "StageMemory", "TimeBreakdown", "Reason", "ServingLayout")
    for record in (schema, *(schema["$defs"][name] for name in answers)):
        assert set(record["properties"]) - described == set()


def test_every_limit_is_described() -> None:
    text = page("request-format.md")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([0-9,]+) \|$", text, re.MULTILINE))
    assert rows == {what: f"{int(limit):,}" for what, limit in REQUEST_LIMITS.items()}


def test_every_number_format_is_described() -> None:
    assert {dtype.value for dtype in DType} <= named(page("request-format.md"))


def test_requests_in_the_documentation_resolve() -> None:
    found = [yaml.safe_load(block) for name in ("request-format.md",) for block in blocks(page(name), "yaml")]
    assert len(found) >= 3
    for document in found:
        resolve_request(training() | document, files=NoFiles())


def test_every_endpoint_is_described(settings: Settings) -> None:
    paths = create_app(settings).openapi()["paths"]
    endpoints = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    text = page("api.md")
    assert {endpoint for endpoint in endpoints if f"`{endpoint}`" not in text} == set()


def test_every_problem_is_described() -> None:
    rows = set(re.findall(r"^\| (\d+) \| `([a-z-]+)` \|", page("api.md"), re.MULTILINE))
    assert rows == {(str(kind.status), kind.name) for kind in KINDS}


@pytest.mark.parametrize("name", ["security.md", "reliability.md"])
def test_every_test_that_a_promise_names_is_there(name: str) -> None:
    """A row of attacks or promises whose test is gone, or was never written, is no promise."""
    tests = ROOT / "tests"
    known = {path.name for path in tests.rglob("test_*.py")}
    sources = "\n".join(path.read_text() for path in tests.rglob("test_*.py"))
    for row in re.findall(r"^\|.*\|$", page(name), re.MULTILINE):
        for word in re.findall(r"`([^`]+)`", row):
            for file in re.findall(r"[\w/]*test_\w+\.py", word):
                assert file.rsplit("/", 1)[-1] in known, row
                assert "/" not in file or (ROOT / file).exists(), row
            if re.fullmatch(r"test_\w+", word):
                assert f"def {word}(" in sources, row


def test_every_setting_and_its_default_is_described() -> None:
    rows = dict(re.findall(r"^\| `(MESHWRIGHT_\w+)` \|.*\| ([^|]+) \|$", page("cli.md"), re.MULTILINE))
    assert rows.keys() == VARIABLES.keys()
    for variable, setting in VARIABLES.items():
        if setting != "database_url":
            default = getattr(Settings(""), setting)
            assert rows[variable].strip("`") == ("none" if default in ("", ()) else str(default))


def test_every_exit_code_is_described() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page("cli.md"), re.MULTILINE)}
    assert codes == {EXIT_GOOD, EXIT_NO, EXIT_BAD_INPUT, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_PIPE}


def test_every_command_and_option_is_described() -> None:
    from typer.main import get_command

    from meshwright.app.cli.main import cli

    text = page("cli.md")
    for name, command in get_command(cli).commands.items():  # type: ignore[attr-defined]
        assert f"\n## {name}\n" in text
        for one in (command, *getattr(command, "commands", {}).values()):
            options = {option for parameter in one.params for option in parameter.opts if option.startswith("--")}
            assert {option for option in options if option not in text} == set()
        assert all(f"$ meshwright {name} {inner} " in text for inner in getattr(command, "commands", {}))


@pytest.mark.slow
def test_commands_of_the_documentation_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "request.yaml").write_text(yaml.safe_dump(training()))
    (cli.folder / "problem.json.gz").write_bytes(gzip.compress(json.dumps(SHARDING_PROBLEM).encode()))
    rows = toy_samples()
    write_samples(cli.folder / "measurements.csv", replace(rows, device=np.full(len(rows), "my-node")))
    monkeypatch.chdir(cli.folder)
    monkeypatch.setenv("MESHWRIGHT_WEBHOOK_SECRET", "s3cret")
    stored = prefix = ""
    for line in "".join(blocks(page("cli.md"), "console")).splitlines():
        command, _, stdin = line.removeprefix("$ meshwright ").replace("sha256:0123456789ab", stored).partition(" < ")
        command = command.replace("3f9a1c07b2de", prefix)
        if command.startswith(("serve", "worker", "replan")):
            continue  # does not end, or needs a registered cluster; has a test of its own
        code = cli(*shlex.split(command), stdin=Path(stdin).read_bytes() if stdin else b"")
        assert code == 0, (line, cli.err)
        if command.startswith("keys create"):
            prefix = cli.out.split("_")[1]
        if command.startswith("webhooks list"):
            prefix = json.loads(cli.out)["webhook_secrets"][0]["id"]
        if Path("plan.json").exists():
            stored = json.loads(Path("plan.json").read_text())["digest"][:19]


@pytest.mark.parametrize("name_of_page", ["cookbook.md", "tutorial.md"])
def test_commands_to_begin_with_are_understood(name_of_page: str, cli: Cli) -> None:
    """Plans resolve to requests, and every command has the options that are named; solving is for the reader."""
    from typer.main import get_command

    from meshwright.app.cli.main import cli as program

    commands = get_command(program).commands  # type: ignore[attr-defined]
    for line in "".join(blocks(page(name_of_page), "console")).splitlines():
        name, *words = shlex.split(line.removeprefix("$ meshwright "))
        if name == "plan":
            assert cli(name, *words, *() if "--print-request" in words else ("--print-request",)) == EXIT_GOOD, (line, cli.err)
            assert all(resolve_request(each, files=FilesBeside(cli.folder)) for each in yaml.safe_load_all(cli.out))
            continue
        command = commands[name]
        inner = getattr(command, "commands", {})
        command, given = (inner[words[0]], words[1:]) if inner else (command, words)
        command.make_context(name, given)
