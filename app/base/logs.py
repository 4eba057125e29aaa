"""Log lines on stderr, as text or JSON, each with the id of the request it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from meshwright.app.base.quoting import json_line, terminal_line, terminal_lines
from meshwright.app.base.settings import LogFormat, LogLevel

_work_id: ContextVar[str] = ContextVar("id of the work in hand", default="-")
"""Id of the REST request or the job that log lines are about; "-" outside one. Why it is no argument:
docs/decisions/0013-log-lines-know-their-request-by-context.md."""

_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


@contextmanager
def logging_for(work_id: str) -> Iterator[None]:
    """Give log lines the id of a REST request or of a job while the block runs."""
    token = _work_id.set(work_id)
    try:
        yield
    finally:
        _work_id.reset(token)


def logged_id() -> str:
    """Return the id that log lines have now, for work that goes on in another thread; "-" outside a request."""
    return _work_id.get()


def start_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send every log line of the process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.value.upper())


class TextFormatter(logging.Formatter):
    """``time level logger message key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback under it where there is one."""
        parts = [_time(record), record.levelname.lower(), record.name, _one_line(record.getMessage())]
        parts += [f"{name}={_one_line(str(value))}" for name, value in _fields(record).items()]
        line = " ".join(parts)
        return f"{line}\n{terminal_lines(self.formatException(record.exc_info))}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time, level, logger, message and fields; the traceback under ``exception``."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields given as ``extra``, and the request id while a request is served."""
    fields = {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}
    current = _work_id.get()
    return fields if current == "-" else {**fields, "request_id": current}


def _one_line(text: str) -> str:
    """Text that can't pass for a log line of its own."""
    return terminal_line(text)
