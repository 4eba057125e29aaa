"""A progress bar on stderr while a search runs, where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.app.base.figures import percent
from meshwright.app.base.quoting import terminal_line
from meshwright.solver.control import OnProgress, Progress, ignore_progress


@contextmanager
def progress_bar(what: str) -> Iterator[OnProgress]:
    """A listener that draws a bar on stderr when stderr is a terminal, and listens to nothing otherwise."""
    if not sys.stderr.isatty():
        yield ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(terminal_line(what), total=None, state="")

        def show(progress: Progress) -> None:
            bar.update(task, total=progress.total or None, completed=progress.done, state=terminal_line(_state(progress)))

        yield show


def _state(moment: Progress) -> str:
    if moment.best is None or moment.bound is None or moment.best <= 0:
        return moment.note
    gap = max(0.0, 1 - moment.bound / moment.best)
    return f"{moment.note} gap {percent(gap)}".strip()
