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
