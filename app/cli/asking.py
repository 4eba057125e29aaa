"""The command line of what a plan is asked for: a request file, or a model and one line of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import AsJson, output_file
from meshwright.app.cli.plans import Calibrations, ExplainOption

RequestOrModel = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST|MODEL",
        help="Request file, or - for stdin; with --gpus a model: a catalogue name, ORG/NAME, a folder, a config.json.",
    ),
]
Gpus = Annotated[
    str | None, typer.Option("--gpus", metavar="DEVICES", help="Plan a model on these: 8xH100, 3x8xH100@400Gb, '5 of 8 H100'.")
]
Serve = Annotated[bool, typer.Option("--serve", help="With --gpus: the devices serve the model.")]
Train = Annotated[bool, typer.Option("--train", help="With --gpus: the devices train the model.")]
Isl = Annotated[str | None, typer.Option("--isl", metavar="TOKENS", help="Serving: tokens of a prompt.")]
Osl = Annotated[str | None, typer.Option("--osl", metavar="TOKENS", help="Serving: tokens of an answer.")]
Rate = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="Serving: requests a second: 4, 240/min.")]
Concurrency = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="Serving: requests at once, instead of --rate.")
]
TtftP95 = Annotated[str | None, typer.Option("--ttft-p95", metavar="TIME", help="Serving: P95 time to first token: 1s.")]
TpotP95 = Annotated[str | None, typer.Option("--tpot-p95", metavar="TIME", help="Serving: P95 time per output token: 40ms.")]
Batch = Annotated[str | None, typer.Option("--batch", metavar="N", help="Training: sequences a step.")]
Seq = Annotated[str | None, typer.Option("--seq", metavar="TOKENS", help="Training: tokens of a sequence.")]
Precision = Annotated[str | None, typer.Option("--precision", metavar="FORMAT", help="With --gpus: bf16, fp8 ...")]
ToLaunch = Annotated[str | None, typer.Option("--launcher", metavar="NAME", help="With --gpus: vllm, megatron-lm ...")]
Best = Annotated[str | None, typer.Option("--objective", metavar="NAME", help="With --gpus: throughput, devices, cost ...")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the config of a model of the Hugging Face Hub that is not on this machine.")
]


@exits
def plan(
    request: RequestOrModel,
    gpus: Gpus = None,
    serve: Serve = False,
    train: Train = False,
    isl: Isl = None,
    osl: Osl = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    ttft_p95: TtftP95 = None,
    tpot_p95: TpotP95 = None,
    batch: Batch = None,
    seq: Seq = None,
    precision: Precision = None,
    launcher: ToLaunch = None,
    objective: Best = None,
    download: Download = False,
    print_request: Annotated[
        bool, typer.Option("--print-request", help="With --gpus: print the request as YAML, to keep, instead of the plan.")
    ] = False,
    as_json: AsJson = False,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=output_file, help="Write the plan document to a file."),
    ] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Neither look in the plan store nor keep the plan.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Solve even if a plan is stored.")] = False,
    calibration: Calibrations = None,
    explain: ExplainOption = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Sweep for the frontier, as search.frontier: swept.")] = False,
) -> int:
    """Find the best plan for a request, or for a model and one line of options."""
    from meshwright.app.cli.commands.one_line import line_document, print_line, requested
    from meshwright.app.cli.commands.planning import Output, PlanCommand, Store, run_plan
    from meshwright.solver.problem.choices import FrontierScope

    line = requested(
        request,
        serve=serve,
        train=train,
        gpus=gpus,
        isl=isl,
        osl=osl,
        rate=rate,
        concurrency=concurrency,
        ttft_p95=ttft_p95,
        tpot_p95=tpot_p95,
        batch=batch,
        seq=seq,
        precision=precision,
        launcher=launcher,
        objective=objective,
    )
    if print_request:
        return print_line(line, download=download)
    store = Store.NONE if no_store else Store.FRESH if fresh else Store.USE
    output = Output.JSON if as_json else Output.PAGE
    scope = FrontierScope.SWEPT if frontier else None
    command = PlanCommand(
        line_document(line, download=download), line.words, file, store, output, tuple(calibration or ()), explain, scope
    )
    return run_plan(command, environment_settings())


@exits
def init(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A catalogue name, ORG/NAME, a checkpoint's folder, a config.json.")
    ] = None,
    gpus: Gpus = None,
    serve: Serve = False,
    train: Train = False,
    isl: Isl = None,
    osl: Osl = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    ttft_p95: TtftP95 = None,
    tpot_p95: TpotP95 = None,
    batch: Batch = None,
    seq: Seq = None,
    precision: Precision = None,
    launcher: ToLaunch = None,
    objective: Best = None,
    download: Download = False,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=output_file, help="Write the request to a file, not to stdout."),
    ] = None,
) -> int:
    """Write a request to keep, from options, and from questions where they are missing and this is a terminal."""
    from meshwright.app.cli.commands.one_line import asked, requested, write_line

    line = requested(
        model or "",
        serve=serve,
        train=train,
        gpus=gpus,
        isl=isl,
        osl=osl,
        rate=rate,
        concurrency=concurrency,
        ttft_p95=ttft_p95,
        tpot_p95=tpot_p95,
        batch=batch,
        seq=seq,
        precision=precision,
        launcher=launcher,
        objective=objective,
    )
    return write_line(asked(line), file, download=download)
