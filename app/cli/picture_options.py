"""The options that write a plan as a picture or a file to take away, declared once for all commands that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.options import output_file

TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", parser=output_file, help="Training: write the step as a trace for Perfetto."),
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", parser=output_file, help="Write the plan as one page of HTML.")
]
TimelineFile = Annotated[
    Path | None,
    typer.Option("--svg-timeline", metavar="FILE", parser=output_file, help="Training: draw the pipeline timeline."),
]
MemoryFile = Annotated[
    Path | None, typer.Option("--svg-memory", metavar="FILE", parser=output_file, help="Draw the memory of each stage.")
]
FrontierFile = Annotated[
    Path | None, typer.Option("--svg-frontier", metavar="FILE", parser=output_file, help="Draw the frontier.")
]
MapFile = Annotated[
    Path | None, typer.Option("--svg-map", metavar="FILE", parser=output_file, help="Draw the ranks over the nodes.")
]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", parser=output_file, help="Write the stages as a table.")]
