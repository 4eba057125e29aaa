"""A request in one line: from options, and questions on a terminal, to a document that is planned or kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from meshwright.app.documents.output_files import is_stdout, write_output
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.quoting import terminal_line
from meshwright.app.requests.files import STDIN, given_request
from meshwright.app.ways_in.model_words import looks_like_a_model
from meshwright.app.ways_in.one_line import OF_TASK, OneLine, Task, example, request_of_line
from meshwright.app.ways_in.request_text import request_yaml
from meshwright.costmodels.errors import InvalidInputError, ModelError

QUESTIONS: Mapping[str, str] = {
    "isl": "Tokens of a prompt (2000)",
    "osl": "Tokens of an answer (300)",
    "rate": "Requests a second (4, or 240/min)",
    "ttft_p95": "P95 time to first token to keep (1s; empty for none)",
    "tpot_p95": "P95 time per output token to keep (40ms; empty for none)",
    "batch": "Sequences a step (512)",
    "seq": "Tokens of a sequence (8192)",
}
"""The question for each option that is missing, with an answer as an example."""


def line_document(line: OneLine, *, download: bool) -> str | dict[str, Any]:
    """Return the path of a request, or the document that options ask for; raises InvalidInputError."""
    if line.is_asked:
        return _document(line, download=download)
    if line.model != STDIN and not _is_there(line.model) and looks_like_a_model(line.model):
        raise ModelError(
            "there is no request file of this name, and a model needs devices and work",
            given=line.model,
            allowed="a request file; or a model with --gpus, and --serve or --train",
            remedy=example(line.model),
        )
    return line.model


def print_line(line: OneLine, *, download: bool) -> int:
    """Print the request of a line as YAML; it is read first, so that what is printed can be planned."""
    if not line.is_asked:
        raise InvalidInputError("--print-request prints what options ask for", given=line.model, remedy=example("qwen3-8b"))
    return write_line(line, None, download=download)


def write_line(line: OneLine, file: Path | None, *, download: bool) -> int:
    """Write the request of a line to a file, or to stdout, once it has been read."""
    text = request_yaml(_document(line, download=download))
    if file is None or is_stdout(file):
        sys.stdout.write(text)
    else:
        write_output(file, text, what="request")
        print(terminal_line(f"wrote {file}; plan it with: meshwright plan {file}"), file=sys.stderr)
    return EXIT_GOOD


def completed(line: OneLine) -> OneLine:
    """Return the line with the answers to questions for what is missing; as it is where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if not line.model:
            raise InvalidInputError(
                "the model is missing", allowed="meshwright init MODEL --gpus 8xH100 ...", remedy=example("qwen3-8b")
            )
        return line
    line = replace(
        line,
        model=line.model or _ask("Model (qwen3-8b, ORG/NAME, a folder, a config.json)"),
        gpus=line.gpus or _ask("Devices (8xH100, 3x8xH100@400Gb, 5 of 8 H100)"),
    )
    if line.task is None:
        answer = _ask("Serve or train").strip().casefold()
        line = replace(line, task=Task.TRAIN if answer.startswith("t") else Task.SERVE)
    task = line.task or Task.SERVE
    missing = [name for name in OF_TASK[task] if name in QUESTIONS and getattr(line, name) is None]
    if line.concurrency is not None and "rate" in missing:
        missing.remove("rate")
    answers: dict[str, Any] = {name: _ask(QUESTIONS[name]) or None for name in missing}
    return replace(line, **answers)


def _ask(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True))


def _document(line: OneLine, *, download: bool) -> dict[str, Any]:
    """Return the document of a line, read once so that its faults are told."""
    if download:
        from meshwright.app.ways_in.download import download_config

        download_config(line.model)
    document = request_of_line(line)
    given_request(document, folder=Path())
    return document


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
