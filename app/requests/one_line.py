"""A request in one line of options: a model, devices, what runs on them, and what must be met."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from meshwright.app.base.documents import parse_document
from meshwright.app.base.figures import (
    DAYS,
    MANY,
    MILLISECONDS,
    MONEY,
    RATE,
    SIZE,
    Quantity,
    read_count,
    read_quantity,
    read_tokens,
)
from meshwright.app.base.quoting import json_text, shell_word
from meshwright.app.requests.model_words import model_of_words
from meshwright.app.requests.options import OF_TASK, OPTIONS, TOKENS, OneLine, Task, typed
from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.costmodels.errors import InvalidInputError

REQUEST_SCHEMA = "meshwright.request/1"
SERVING_LAUNCHER = "vllm"
"""The launcher of a serving request in one line that names none; that of request files is a launcher of training."""
ADAPTER_LAUNCHER = "trl"
"""The same of a request with adapters, which few launchers train."""
_OVER_AN_ENGINE = frozenset({"dynamo", "llm-d", "ray-serve", "kserve", "skypilot"})
"""Schedulers of servers that are named as launchers: they start that launcher's, in its space."""


EXAMPLES = {
    Task.SERVE: "--serve --isl 2000 --osl 300 --rate 4",
    Task.TRAIN: "--train --batch 512 --seq 8192",
}


def request_of_line(line: OneLine, *, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the request document that the options say; raises InvalidInputError for what is missing or strange.

    ``source`` is the document's model, where the line has no words for it.
    """
    task = _task(line)
    model: dict[str, Any] = dict(model_of_words(line.model) if source is None else source)
    if line.assume_decoder:
        model["assume_decoder"] = True
    if line.gpus is None:
        raise InvalidInputError(
            "the devices are missing", allowed="--gpus 8xH100", remedy=f"add them: {example(line.model, task)}"
        )
    cluster = line.gpus.strip()
    if line.host_memory is not None:
        read_quantity(line.host_memory, SIZE, what="--host-memory")
        cluster = f"{cluster}, {line.host_memory.strip()} host memory"
    document: dict[str, Any] = {"schema": REQUEST_SCHEMA, "model": model, "cluster": cluster}
    if task is Task.SERVE:
        document["workload"] = _serving(line)
        document |= {"slo": slo} if (slo := _targets(line)) else {}
    else:
        document["workload"] = _training(line)
        document |= {"slo": slo} if (slo := _deadline(line) | _budget(line)) else {}
    if line.precision is not None:
        document["workload"]["precision"] = line.precision
    if line.objective is not None:
        document["objective"] = line.objective
    usual = SERVING_LAUNCHER if task is Task.SERVE else ADAPTER_LAUNCHER if "adapter" in document["workload"] else None
    launcher = line.launcher or usual
    if task is Task.SERVE and launcher in _OVER_AN_ENGINE:
        launcher = SERVING_LAUNCHER
    return document | ({"search": {"launcher": launcher}} if launcher else {})


def example(model: str, task: Task | None = None) -> str:
    """Return a command that plans a model, its name quoted for a shell."""
    return f"meshwright plan {shell_word(model)} --gpus 8xH100 {EXAMPLES[task or Task.SERVE]}"


def _task(line: OneLine) -> Task:
    """Return the task that is named, or else the one whose options are given."""
    given = {task: [typed(name) for name in names if getattr(line, name) is not None] for task, names in OF_TASK.items()}
    meant = [task for task, options in given.items() if options]
    if line.task is None and len(meant) == 1:
        return meant[0]
    if line.task is None:
        problem = "options of serving and of training do not go together" if meant else "nothing says what the devices are for"
        raise InvalidInputError(
            problem,
            given=", ".join(word for options in given.values() for word in options) or None,
            allowed=" or ".join(EXAMPLES.values()),
        )
    strange = [word for task, options in given.items() if task is not line.task for word in options]
    if strange:
        allowed = ", ".join(typed(name) for name in OF_TASK[line.task])
        raise InvalidInputError(f"options do not go with --{line.task}", given=", ".join(strange), allowed=allowed)
    return line.task


def _serving(line: OneLine) -> dict[str, Any]:
    if (line.rate is None) == (line.concurrency is None):
        raise InvalidInputError(
            "serving needs one account of its load",
            given="--rate and --concurrency" if line.rate is not None else "neither",
            allowed="--rate 4 (requests a second) or --concurrency 64 (requests at once)",
        )
    if line.rate is not None:
        arrivals: dict[str, Any] = {
            "process": "poisson",
            "requests_per_s": _number(read_quantity(line.rate, RATE, what="--rate")),
        }
    else:
        arrivals = {"process": "closed", "concurrency": _count(line, "concurrency")}
    return {
        "kind": "serving",
        "arrivals": arrivals,
        "prompt_tokens": {"fixed": _count(line, "isl")},
        "output_tokens": {"fixed": _count(line, "osl")},
    }


def _training(line: OneLine) -> dict[str, Any]:
    work = {"kind": "training", "global_batch": _count(line, "batch"), "seq_len": _count(line, "seq")}
    run = {} if line.tokens is None else {"run_tokens": _run_tokens(line.tokens)}
    return work | run | ({"adapter": adapter} if (adapter := _adapter(line)) else {})


def _run_tokens(text: str) -> int:
    tokens = read_quantity(text, MANY, what="--tokens")
    if tokens < 1 or not float(tokens).is_integer():
        raise InvalidInputError("--tokens is no whole number of tokens", given=text, allowed=MANY.example)
    return int(tokens)


def _deadline(line: OneLine) -> dict[str, float]:
    """The speed that a run needs to end in time."""
    given = _of_run(line, "within", DAYS, example="30d", none="a run takes some time")
    return {} if given is None else {"min_tokens_per_s": _number(given.tokens / (given.most * 86_400.0))}


def _budget(line: OneLine) -> dict[str, float]:
    """What a million tokens may cost for the run to keep its budget."""
    given = _of_run(line, "budget", MONEY, example="500k", none="a run costs something")
    return {} if given is None else {"max_cost_per_million_tokens": _number(given.most * 1e6 / given.tokens)}


class _RunLimit(NamedTuple):
    """The most that a whole run may take of something, and its tokens."""

    most: float
    tokens: int


def _of_run(line: OneLine, name: str, kind: Quantity, *, example: str, none: str) -> _RunLimit | None:
    """The limit of a run by an option, which needs the tokens of the run; None where it is not given."""
    text: str | None = getattr(line, name)
    if text is None:
        return None
    option = typed(name)
    if line.tokens is None:
        raise InvalidInputError(f"{option} needs the tokens of the run", allowed=f"--tokens 1T {option} {example}")
    most = read_quantity(text, kind, what=option)
    if not most > 0:
        raise InvalidInputError(none, given=f"{option} {text}", allowed=kind.example)
    return _RunLimit(most, _run_tokens(line.tokens))


def _adapter(line: OneLine) -> dict[str, Any]:
    if line.lora is not None and line.qlora is not None:
        raise InvalidInputError("adapters have one rank", given="--lora and --qlora", allowed="one of them")
    if line.qlora is not None:
        return {"rank": _count(line, "qlora"), "base_format": "nf4"}
    return {} if line.lora is None else {"rank": _count(line, "lora")}


def _targets(line: OneLine) -> dict[str, float]:
    given = {"p95_ttft_ms": ("--ttft-p95", line.ttft_p95), "p95_tpot_ms": ("--tpot-p95", line.tpot_p95)}
    return {
        field: _number(read_quantity(text, MILLISECONDS, what=name))
        for field, (name, text) in given.items()
        if text is not None
    }


def _count(line: OneLine, name: str) -> int:
    text = getattr(line, name)
    if text is None:
        task = next(task for task, names in OF_TASK.items() if name in names)
        raise InvalidInputError(f"{typed(name)} is missing", allowed="a whole number", remedy=f"as in: {EXAMPLES[task]}")
    read = read_tokens if OPTIONS[name].metavar == TOKENS else read_count
    return read(text, what=typed(name))


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value


# A line with other values: what a plan suggests, in the options that ask for it.

_SAID_BY = {
    "workload.prompt_tokens.fixed": ("isl", ""),
    "workload.output_tokens.fixed": ("osl", ""),
    "workload.arrivals.requests_per_s": ("rate", ""),
    "workload.arrivals.concurrency": ("concurrency", ""),
    "slo.p95_ttft_ms": ("ttft_p95", "ms"),
    "slo.p95_tpot_ms": ("tpot_p95", "ms"),
    "workload.seq_len": ("seq", ""),
    "workload.precision": ("precision", ""),
}
"""Fields of a resolved request that an option says, with the unit of its value."""
_COST = "slo.max_cost_per_million_tokens"
_FIRST_GROUP = "cluster.groups.0."
_COUNTED = re.compile(r"\s*(?:\d+\s*x\s*)?\d+\s*x(?!\s*\d+\s*x)", re.IGNORECASE)
"""Nodes and devices of each at the start of the words of a cluster: ``2x8x``, ``8x``."""


def said_by_options(line: OneLine, values: Mapping[str, str], first: NodeGroup) -> tuple[OneLine, Mapping[str, str]]:
    """Return the line with what options say of new values of fields, as JSON by dotted path, and the values that are left.

    ``first`` is the first node group with these values. An option may mean more than its field, and words of a cluster other
    nodes: read the line to see what it asks for.
    """
    said, left = dict[str, Any](), dict[str, str]()
    counted = None if line.gpus is None else _COUNTED.match(line.gpus)
    for path, value in values.items():
        if path == _COST and line.budget is not None and line.tokens is not None:
            said["budget"] = f"{json.loads(value) * _run_tokens(line.tokens) / 1e6:.12g}"
        elif path in _SAID_BY:
            name, unit = _SAID_BY[path]
            said[name] = yaml_value(json.loads(value)).removesuffix(".0") + unit
        elif counted and path.startswith(_FIRST_GROUP):
            nodes = f"{first.nodes}x" if first.nodes > 1 else ""
            said["gpus"] = f"{nodes}{first.node.devices_per_node}x{counted.string[counted.end() :]}"
        else:
            left[path] = value
    return replace(line, **said), left


# A request document as YAML that a user keeps: a line a field, each with what it says.

COMMENTS: Mapping[str, str] = {
    "model": "a catalogue name, an id of the Hugging Face Hub, or the path of a config.json",
    "cluster": "devices in words, or node groups: docs/request-format.md",
    "workload": "what runs; more fields, with their defaults: docs/request-format.md",
    "slo": "what must be met by 95% of requests",
    "objective": "what the best plan is best at",
    "search": "the space of plans",
}
"""The comment over each field of a request."""

_PLAIN_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_PLAIN = _PLAIN_START | frozenset("/._-")


def request_yaml(document: Mapping[str, Any]) -> str:
    """Return the request as YAML of ours: reading it gives the same document."""
    lines = []
    for name, value in document.items():
        if name in COMMENTS:
            lines.append(f"# {COMMENTS[name]}")
        lines.append(f"{name}: {yaml_value(value)}")
    return "\n".join(lines) + "\n"


def yaml_value(value: object) -> str:
    """Return a value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {yaml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str) and _is_plain(value):
        return value
    return json_text(value, indent=None)


def _is_plain(text: str) -> bool:
    """Return True for text that YAML reads as itself without quotes."""
    if not text or text[0] not in _PLAIN_START or not _PLAIN.issuperset(text):
        return False
    try:
        return bool(parse_document(f"text: {text}".encode(), what="text") == {"text": text})
    except InvalidInputError:
        return False
