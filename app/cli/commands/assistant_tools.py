"""The tools that ``mcp`` offers to assistants: each is a command, asked by a JSON object and answered with the command's page.

A call is answered in a process of its own (`app.service.child`). No file is read that a call names: models, requests and plans
come as texts, or by names of the catalogue and digests of the plan store.
"""

from __future__ import annotations

import json
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, make_dataclass
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter, WithJsonSchema

from meshwright.app.base.quoting import json_text
from meshwright.app.base.records import read_record
from meshwright.app.base.settings import read_settings
from meshwright.app.cli.commands.exits import Output
from meshwright.app.cli.commands.planning import PlanCommand, Store, print_page, print_predicted, request_of, run_plan
from meshwright.app.requests.changes import set_field
from meshwright.app.requests.limits import Entry, check_values
from meshwright.app.requests.model_words import model_of_catalogue
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OPTIONS, OneLine, Task
from meshwright.app.requests.own_hardware import own_nodes
from meshwright.app.requests.plan_documents import read_plan, read_plan_document
from meshwright.app.requests.resolve import NoFiles
from meshwright.app.service.asking import NewExplanation
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import InvalidInputError, PlanFileError
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.solver.answer.plan import AnsweredRequest

MOST_CHARACTERS = 30_000
"""Characters of an answer: ten thousand tokens at three characters each, from where on Claude Code warns of its size (its
documentation, "MCP output limits and warnings"). A page that fits a screen has some two thousand."""

SCHEME = "meshwright://"
LISTED_PLANS = 50
"""Newest stored plans that are listed; one takes some 350 characters."""


class _OwnHardware(NoFiles):
    """Requests that name no files, on this machine's own hardware as well as the catalogue's."""

    def own_nodes(self) -> Mapping[str, NodeType]:
        """Return the node types that this machine's user has added."""
        return own_nodes()


# What a tool is given. Words of a request are the options of ``meshwright plan``, as text or numbers.

_Word = str | int | float | None
_WORDS = {"model": "A name of the catalogue (resource models), or an id of the Hugging Face Hub that it knows."} | {
    name: option.help.removeprefix("With --gpus: ").replace("--", "") for name, option in OPTIONS.items()
}
_Words: Any = make_dataclass(
    "Words",
    [
        ("model", Annotated[str, Field(description=_WORDS["model"])]),
        (
            "task",
            Annotated[Literal["serve", "train"] | None, Field(description="What the devices do, where no other word says it.")],
            None,
        ),
        *((name, Annotated[_Word, Field(description=_WORDS[name])], None) for name in OPTIONS),
    ],
    frozen=True,
    kw_only=True,
    namespace={"__pydantic_config__": STRICT_RECORD},
)
_OR_A_DOCUMENT = {
    "type": "object",
    "required": ["schema", "model", "cluster", "workload"],
    "description": f"A whole request (meshwright.request/1, schema in {SCHEME}schemas/request). It names no files: the content "
    "of a config.json goes into model.config.",
}

Words = Annotated[Mapping[str, Any], WithJsonSchema(TypeAdapter(_Words).json_schema())]
Request = Annotated[Mapping[str, Any], WithJsonSchema({"anyOf": [TypeAdapter(_Words).json_schema(), _OR_A_DOCUMENT]})]
Given = Annotated[str | Mapping[str, Any], Field(description="The digest of a stored plan (sha256:...), or a plan document.")]
Digest = Annotated[str, Field(description="The digest of a stored plan, or its start: sha256: and at least 8 digits.")]
Full = Annotated[bool, Field(description="The whole page: what lost, the frontier, calibrations, notes.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCall:
    """Find the best plan of a model on a cluster, with its predicted speed, memory and cost, bands, and proven gap.

    The plan is stored: its digest is at the end of the page. A search takes up to 60 s unless search.time_limit_s says less.
    """

    __pydantic_config__ = STRICT_RECORD

    request: Request
    full: Full = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCall:
    """Ask one question of several clusters (gpus: "8xH100,8xMI300X"; left out: usual nodes of the catalogue), best one first.

    Each cluster's search takes up to 60 s.
    """

    __pydantic_config__ = STRICT_RECORD

    request: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfCall:
    """Plan a request as it is and with a change, and show both answers side by side, then their pages."""

    __pydantic_config__ = STRICT_RECORD

    request: Request
    change: Annotated[
        Mapping[str, Any],
        Field(description='New values by field: {"rate": 8}; of a whole request by dotted path: {"workload.seq_len": 16384}.'),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictCall:
    """Check a given plan and predict its speed, latencies and memory, for its own request or for another. Stores nothing."""

    __pydantic_config__ = STRICT_RECORD

    plan: Given
    request: Request | None = None
    full: Full = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCall:
    """Write what launches a stored plan: the command, and the files or the job that it needs."""

    __pydantic_config__ = STRICT_RECORD

    plan: Digest
    to: Annotated[str, Field(description="megatron-lm, deepspeed, torchtitan, vllm, sglang ..., or slurm, kubernetes ...")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveCall:
    """Store what was measured when a stored plan ran; later plans on that hardware rest on it."""

    __pydantic_config__ = STRICT_RECORD

    plan: Digest
    step_time: Annotated[_Word, Field(description="Training: time of a step: 7.1s.")] = None
    peak_memory: Annotated[_Word, Field(description="Peak of the fullest device, reserved: 71GiB.")] = None
    tokens_per_s: Annotated[_Word, Field(description="Serving: tokens generated a second.")] = None
    ttft_p95: Annotated[_Word, Field(description="Serving: P95 time to first token: 800ms.")] = None
    tpot_p95: Annotated[_Word, Field(description="Serving: P95 time per output token: 35ms.")] = None
    rate: Annotated[_Word, Field(description="Serving: requests a second that were sent, if not those asked for.")] = None
    out_of_memory: bool = False
    software: Annotated[str, Field(description="Versions that it ran with.")] = ""
    label: Annotated[str, Field(description="Words that tell runs with equal figures apart.")] = ""
    dry_run: Annotated[bool, Field(description="Say what would be stored; store nothing.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateCall:
    """Predict every row of a table of measured training runs or serving points, and report how far off predictions are."""

    __pydantic_config__ = STRICT_RECORD

    table: Annotated[str, Field(description="The text of a CSV table, its columns named in the first line.")]
    folds: Annotated[int | None, Field(ge=2, le=20, description="Fit device rates, and score held-out runs.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCall:
    """The address of a resource."""

    __pydantic_config__ = STRICT_RECORD

    uri: str


def _plan(call: PlanCall) -> None:
    run_plan(_command(call.request, Output.FULL if call.full else Output.PAGE), read_settings())


def _compare(call: CompareCall) -> None:
    from meshwright.app.cli.commands.clusters import run_clusters
    from meshwright.app.cli.commands.one_line import named_clusters

    line = _line(call.request)
    if len(named_clusters(line)) == 1:
        raise InvalidInputError("several clusters are compared", given=line.gpus, allowed="8xH100,8xH200", remedy="ask 'plan'")
    command = PlanCommand("", line, None, Store.USE, Output.PAGE, files=_OwnHardware())
    run_clusters(line, command, read_settings(), download=False)


def _what_if(call: WhatIfCall) -> None:
    from meshwright.app.base.console import page_console, plain
    from meshwright.app.cli.commands.planning import answer, next_step
    from meshwright.app.cli.commands.stored_plans import open_store
    from meshwright.app.cli.pages.clusters_page import ClusterRow, print_rows
    from meshwright.app.requests.digests import keyed_request

    if not call.change:
        raise InvalidInputError("the change is missing", allowed='new values by field, as {"rate": 8}')
    settings, answers, ends = read_settings(), [], []
    store = open_store(settings)
    # Both are read before either is solved.
    commands = [_command(each, Output.PAGE) for each in (call.request, _changed(call.request, call.change))]
    for command, request in [(each, request_of(each, settings)) for each in commands]:
        text, is_stored = answer(keyed_request(request), store, command)
        plan = read_plan(json.loads(text))
        answers.append(AnsweredRequest(plan, request))
        ends.append(next_step(plan, request, command, settings, is_stored=is_stored))
    console = page_console()
    rows = [ClusterRow(words, each) for words, each in zip(("as asked", "changed"), answers, strict=True)]
    console.print(plain(f"Changed: {', '.join(f'{name} to {json.dumps(value)}' for name, value in call.change.items())}"))
    print_rows(console, rows, answers[0], title="answer")
    for row, each, end in zip(rows, answers, ends, strict=True):
        console.print()
        console.print(plain(f"{row.words}:", style="bold"))
        print_page(each.plan, each.request, end, (), full=False)


def _predict(call: PredictCall) -> None:
    document = call.plan if isinstance(call.plan, Mapping) else _stored(call.plan)
    check_values(document, Entry.STORED)
    if call.request is None:
        given = read_plan_document(dict(document))
        request, plan = given.request, given.plan
    else:
        request, plan = request_of(_command(call.request, Output.PAGE), read_settings()), read_plan(dict(document))
    print_predicted(request, plan, Output.FULL if call.full else Output.PAGE)


def _explain(call: NewExplanation) -> None:
    from meshwright.app.base.console import page_console
    from meshwright.app.base.solving import solve_here
    from meshwright.app.cli.pages.command_page import print_explanation
    from meshwright.app.service.answers import explained_command
    from meshwright.app.service.explaining.explain import with_better

    print_explanation(page_console(), with_better(explained_command(call), solve_here))


def _export(call: ExportCall) -> None:
    from meshwright.app.cli.commands.exporting import ExportCommand, run_export

    run_export(ExportCommand(_digest(call.plan), call.to, None, None, Output.PAGE), read_settings())


def _observe(call: ObserveCall) -> None:
    from meshwright.app.cli.commands.observing import Given as Figures
    from meshwright.app.cli.commands.observing import ObserveCommand, run_observe

    names = ("step_time", "peak_memory", "tokens_per_s", "ttft_p95", "tpot_p95", "rate")
    figures = Figures(**{name: _text(getattr(call, name)) for name in names}, out_of_memory=call.out_of_memory)
    told = (call.software, call.label, Output.PAGE)
    command = ObserveCommand(_digest(call.plan), figures, None, None, *told, dry_run=call.dry_run, as_run=False)
    run_observe(command, read_settings())


def _validate(call: ValidateCall) -> None:
    from meshwright.app.cli.commands.validating import run_validate

    with tempfile.TemporaryDirectory(prefix="meshwright-mcp-") as folder:
        table = Path(folder, "table.csv")
        table.write_text(call.table, encoding="utf-8", newline="")
        run_validate(table, Output.PAGE, folds=call.folds)


def _resource(call: ResourceCall) -> None:
    """Print a document, or the part of it that the address names after the document's own."""
    kind, *parts = [unquote(part) for part in call.uri.removeprefix(SCHEME).split("/")]
    if not call.uri.startswith(SCHEME) or kind not in RESOURCES:
        allowed = ", ".join(f"{SCHEME}{each}" for each in RESOURCES)
        raise InvalidInputError("there is no such resource", given=call.uri, allowed=allowed)
    found = RESOURCES[kind]
    document = found.all() if not parts or found.one is None else found.one(parts.pop(0))
    for name in parts:
        inner = document if isinstance(document, dict) else {}
        if isinstance(document, list):
            inner = {str(index): value for index, value in enumerate(document)}
        if name not in inner:
            allowed = ", ".join(list(inner)[:20]) or "none: this is no list or object"
            raise InvalidInputError("the resource has no such part", given=name, allowed=allowed)
        document = inner[name]
    sys.stdout.write(json_text(_bounded(document, call.uri), indent=None) + "\n")


def _bounded(document: Any, at: str) -> Any:
    """Return a document that fits an answer: instead of its longest fields, or of its last items, it has their addresses."""
    if isinstance(document, list):
        ends = list(accumulate(len(json_text(item, indent=None)) + 2 for item in document))
        if not ends or ends[-1] <= MOST_CHARACTERS:
            return document
        note = "left out: {:,} items, in {}/{} and after"
        longest = len(json_text(note.format(len(ends), at, len(ends)), indent=None)) + len("[, ]")
        first = bisect_right(ends, MOST_CHARACTERS - longest)
        return [*document[:first], note.format(len(ends) - first, at, first)]
    if not isinstance(document, dict):
        return document
    kept = dict(document)
    lengths = {name: len(json_text({name: value}, indent=None)) for name, value in document.items()}
    total = sum(lengths.values())
    for name in sorted(lengths, key=lengths.__getitem__, reverse=True):
        note = f"left out: {lengths[name]:,} characters, in {at}/{quote(name, safe='$')}"
        saved = lengths[name] - len(json_text({name: note}, indent=None))
        if total <= MOST_CHARACTERS or saved <= 0:
            break
        kept[name] = note
        total -= saved
    return kept


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: the record of its arguments, whose docstring says what it does unless ``description`` does, and what prints its
    answer; ``stores`` is True if that keeps plans or runs."""

    arguments: type[Any]
    answer: Callable[[Any], None]
    description: str = ""
    stores: bool = False


_EXPLAINED = """Say what a launch command does: whether it starts and fits, how fast it is, and what plan is better.

The command, script or configuration comes as text and is never run; texts of files that it names go into files."""

TOOLS: Mapping[str, Tool] = {
    "plan": Tool(PlanCall, _plan, stores=True),
    "explain": Tool(NewExplanation, _explain, _EXPLAINED),
    "predict": Tool(PredictCall, _predict),
    "compare": Tool(CompareCall, _compare, stores=True),
    "what_if": Tool(WhatIfCall, _what_if, stores=True),
    "export": Tool(ExportCall, _export),
    "observe": Tool(ObserveCall, _observe, stores=True),
    "validate": Tool(ValidateCall, _validate),
}
"""The tools by name."""

_OWN_RULES = frozenset({"request", "plan", "command", "files", "table"})
"""Arguments with lines, or with values that are checked where they are read."""

READ = "read"
"""The name under which resources are asked for, beside the tools."""


def answered(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``text`` that answers a call, ``tool`` by name with ``arguments``. Raises as the command of that name."""
    name, arguments = document["tool"], document["arguments"]
    with redirect_stdout(StringIO()) as page, redirect_stderr(StringIO()) as notes:
        if name == READ:
            _resource(read_record(ResourceCall, arguments, what="resource"))
        else:
            check_values({field: value for field, value in arguments.items() if field not in _OWN_RULES})
            TOOLS[name].answer(read_record(TOOLS[name].arguments, arguments, what="call"))
    # Pages are padded to their width, of which an assistant has nothing.
    return {"text": _cut("".join(f"{line.rstrip()}\n" for line in f"{page.getvalue()}{notes.getvalue()}".split("\n")).rstrip())}


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    kept = text[: text.rfind("\n", 0, MOST_CHARACTERS) + 1] or text[:MOST_CHARACTERS]
    left = len(text) - len(kept)
    return f"{kept}\nLeft out: {left:,} of {len(text):,} characters. Ask for less: no full page, or a part of a resource."


# From arguments to what commands take.


def _command(request: Mapping[str, Any], output: Output) -> PlanCommand:
    """The command that plans a request; raises InvalidInputError for several clusters, and for one that may take too long."""
    from meshwright.app.cli.commands.one_line import named_clusters
    from meshwright.app.service.planning import check_time_limit

    document, line = dict(request), OneLine("REQUEST")
    if "workload" not in request:
        line = _line(request)
        if line.gpus is not None and len(named_clusters(line)) > 1:
            raise InvalidInputError("a plan is of one cluster", given=line.gpus, remedy="ask 'compare'; '+' joins node groups")
        document = request_of_line(line)
    command = PlanCommand(document, line, None, Store.USE, output, files=_OwnHardware())
    settings = read_settings()
    check_time_limit(request_of(command, settings), settings.max_time_limit_s)
    return command


def _line(words: Mapping[str, Any]) -> OneLine:
    check_values(words)
    read = read_record(_Words, dict(words), what="request")
    # Refused here, so that no file of this name is looked for.
    model_of_catalogue(read.model)
    return OneLine(
        read.model,
        task=None if read.task is None else Task(read.task),
        **{name: _text(getattr(read, name)) for name in OPTIONS},
    )


def _text(value: _Word) -> Any:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else None if value is None else str(value)


def _changed(request: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a request with new values at fields, which are names or dotted paths."""
    changed: dict[str, Any] = json.loads(json.dumps(request))
    for path, value in change.items():
        set_field(changed, path, value)
    return changed


def _digest(plan: str) -> str:
    if not plan.startswith("sha256:"):
        raise PlanFileError("a stored plan is named by its digest", given=plan, allowed="sha256: and at least 8 digits")
    return plan


def _stored(plan: str) -> dict[str, Any]:
    from meshwright.app.cli.commands.stored_plans import given_plan_document

    document: Any = given_plan_document(_digest(plan), read_settings())
    return dict(document)


# Resources: documents by address. A part of one has the document's address and the names of fields after it.


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of documents: the list of them, and one by its name, if these can be asked for."""

    listed: str
    all: Callable[[], Any]
    named: str = ""
    one: Callable[[str], Any] | None = None


def _plans() -> dict[str, Any]:
    from meshwright.app.cli.commands.stored_plans import open_store
    from meshwright.app.store.plans import PlanFilter

    store = open_store(read_settings())
    found = () if store is None else store.page(PlanFilter(), before=None, limit=LISTED_PLANS)
    return {"newest": [asdict(each) | {"created_at": each.created_at.isoformat()} for each in found], "at_most": LISTED_PLANS}


def _models() -> dict[str, Any]:
    from meshwright.app.web.reference import list_models

    return list_models().model_dump()


def _clusters() -> dict[str, Any]:
    from meshwright.app.web.reference import list_hardware

    return list_hardware().model_dump() | {"own": sorted(own_nodes())}


def _schemas() -> dict[str, Any]:
    from meshwright.app.web.json_schemas import schema_id, schema_names

    return {name: schema_id(name) for name in schema_names()}


def _schema(name: str) -> Any:
    from meshwright.app.web.json_schemas import json_schema

    return json_schema(name)


RESOURCES: Mapping[str, Resource] = {
    "models": Resource("Models that a request can name, and their parameters.", _models),
    "clusters": Resource("Node types that a request can name; memory in bytes, links in bytes a second.", _clusters),
    "plans": Resource("The newest stored plans.", _plans, "A stored plan by its digest, with its request.", _stored),
    "schemas": Resource("Names of the JSON Schemas.", _schemas, "The JSON Schema of a document, as request or plan.", _schema),
}
"""The documents that can be read, by the name after SCHEME."""
