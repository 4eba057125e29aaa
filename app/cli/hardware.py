"""The command line of ``hardware`` and ``calibrate``; ``app.cli.main`` holds it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.options import AsJson, environment_settings, group_of, input_path, output_file

hardware = group_of("hardware", purpose="Show the devices and nodes that a request can name, and write one of your own.")


@hardware.command("list")
@exits
def list_hardware(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Only names and aliases that hold this text.")] = None,
    as_json: AsJson = False,
) -> int:
    """List devices and node types by name. Exit code 1 when none has the text in its name."""
    from meshwright.app.cli.commands.hardware import run_list

    return run_list(text, as_json=as_json)


@hardware.command("show")
@exits
def show_hardware(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A device or node type, or an alias.")],
    as_request: Annotated[
        bool, typer.Option("--request", help="Print the cluster of a request, every figure written out, to change and use.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show every figure of a device or node type, with its source."""
    from meshwright.app.cli.commands.hardware import run_show

    return run_show(name, as_request=as_request, as_json=as_json)


@hardware.command("add")
@exits
def add_hardware(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device's name, or a file of a node type.")],
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of a device, as 24GiB.")] = None,
    bandwidth: Annotated[str | None, typer.Option(metavar="SPEED", help="Bandwidth of its memory, as 1008GB/s.")] = None,
    bf16: Annotated[str | None, typer.Option(metavar="FLOPS", help="Dense 16-bit peak, as 165TFLOPS.")] = None,
    fp8: Annotated[str | None, typer.Option(metavar="FLOPS", help="Dense fp8 peak.")] = None,
    fp4: Annotated[str | None, typer.Option(metavar="FLOPS", help="Dense fp4 peak.")] = None,
    per_node: Annotated[int, typer.Option(min=1, help="Devices of a node.")] = 8,
    fabric: Annotated[str | None, typer.Option(metavar="SPEED", help="A device's fabric in the node, one direction.")] = None,
    network: Annotated[str | None, typer.Option(metavar="SPEED", help="A node's network in all, as 400Gb.")] = None,
    power: Annotated[float | None, typer.Option(min=0.0, metavar="W", help="Power of a device at full load.")] = None,
    price: Annotated[float | None, typer.Option(min=0.0, metavar="USD", help="Price of a device-hour.")] = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="KEY", help="Calibration that stands for it; left out, the nearest measured device's.")
    ] = None,
) -> int:
    """Keep a device of your own by its data sheet, to be named in requests, and say what is borrowed for it."""
    from meshwright.app.cli.commands.hardware import run_add
    from meshwright.app.requests.own_hardware import DataSheet

    required = {"memory": memory, "bandwidth": bandwidth, "bf16": bf16, "fabric": fabric, "network": network}
    sheet = DataSheet(
        name,
        **{option: given or "" for option, given in required.items()},
        fp8=fp8,
        fp4=fp4,
        per_node=per_node,
        power_w=power,
        price_per_hour=price,
        calibration=calibration,
    )
    return run_add(sheet, missing=[f"--{option}" for option, given in required.items() if given is None])


calibrate = group_of("calibrate", purpose="Measure devices, fit calibrations, keep and compare them.")


class BackendName(StrEnum):
    """Where PyTorch measures."""

    CPU = "cpu"
    CUDA = "cuda"


Devices = Annotated[list[str] | None, typer.Option("--device", metavar="KEY", help="Only this device; again for more.")]
Node = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Catalogue node type whose device was measured, if not its first.")
]
Cores = Annotated[
    int, typer.Option("--cores", metavar="N", min=1, help="Compute units of a device that the catalogue does not have.")
]
Folds = Annotated[int, typer.Option("--folds", metavar="N", min=2, max=20, help="Parts that are held out in turn.")]
NoStore = Annotated[bool, typer.Option("--no-store", help="Print the errors, keep nothing.")]
CalibrationName = Annotated[str, typer.Argument(metavar="CALIBRATION", help="KEY, KEY@VERSION or KEY@sha256:DIGITS.")]


@calibrate.command("profile")
@exits
def profile(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Calibration key that the measurements are for.")],
    file: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", parser=output_file, help="CSV or Parquet file to write.")
    ],
    backend: Annotated[BackendName, typer.Option("--on", help="Where to measure.")] = BackendName.CPU,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", min=1, max=64, help="Processes that measure at once.")] = 1,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="CPU threads of each process.")] = 1,
    kind: Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind; again for more.")] = None,
    repeat_ms: Annotated[
        float, typer.Option("--repeat-ms", metavar="MS", min=0.1, help="Time that one shape is repeated for.")
    ] = 30.0,
) -> int:
    """Measure kernels and collectives with PyTorch on this machine."""
    from meshwright.app.cli.commands.calibrating import ProfileCommand, run_profile
    from meshwright.app.evidence.measuring.profiling import ProfilingDevice

    return run_profile(ProfileCommand(key, file, ProfilingDevice(backend.value), tuple(kind or ()), ranks, threads, repeat_ms))


@calibrate.command("import")
@exits
def import_measurements(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="CSV or Parquet files; none: the installed package's tables."),
    ] = None,
    device: Devices = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", parser=output_file, help="Write the measurements instead of fitting them."
        ),
    ] = None,
    node: Node = None,
    cores: Cores = 1,
    folds: Folds = 5,
    no_store: NoStore = False,
    as_json: AsJson = False,
) -> int:
    """Read measurements from files or from aiconfigurator-core, fit them and keep the calibrations."""
    from meshwright.app.cli.commands.calibrating import FitOptions, run_import
    from meshwright.app.cli.commands.exits import Output

    options = FitOptions(node, cores, folds, not no_store, Output.JSON if as_json else Output.PAGE)
    return run_import(files or [], device or [], file, options, environment_settings())


@calibrate.command("fit")
@exits
def fit(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV or Parquet files of measurements.")],
    device: Devices = None,
    node: Node = None,
    cores: Cores = 1,
    folds: Folds = 5,
    no_store: NoStore = False,
    as_json: AsJson = False,
) -> int:
    """Fit measurements, print the held-out errors beside their targets, keep the calibrations."""
    from meshwright.app.cli.commands.calibrating import FitOptions, run_fit
    from meshwright.app.cli.commands.exits import Output

    options = FitOptions(node, cores, folds, not no_store, Output.JSON if as_json else Output.PAGE)
    return run_fit(files, device or [], options, environment_settings())


@calibrate.command("fabric")
@exits
def fabric(
    script: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_file,
            help="Write the script that measures the network to this file.",
        ),
    ] = None,
    measurements: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", parser=input_path, help="Fit what the script has measured.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="CLUSTER", help="What was measured: a registered cluster, or one in words."),
    ] = None,
    no_store: NoStore = False,
    as_json: AsJson = False,
) -> int:
    """Measure the network between nodes: write the script for torchrun, then fit and keep its measurements."""
    from meshwright.app.cli.commands.calibrating import FabricCommand, run_fabric
    from meshwright.app.cli.commands.exits import Output

    command = FabricCommand(script, measurements, cluster, not no_store, Output.JSON if as_json else Output.PAGE)
    return run_fabric(command, environment_settings())


@calibrate.command("list")
@exits
def list_calibrations(
    device: Annotated[str | None, typer.Option("--device", metavar="KEY", help="Only this device's.")] = None,
    as_json: AsJson = False,
) -> int:
    """List stored calibrations, newest first."""
    from meshwright.app.cli.commands.calibrating import run_list
    from meshwright.app.cli.commands.exits import Output

    return run_list(device, Output.JSON if as_json else Output.PAGE, environment_settings())


@calibrate.command("show")
@exits
def show(calibration: CalibrationName, as_json: AsJson = False) -> int:
    """Show a stored calibration's errors; with --json, its document."""
    from meshwright.app.cli.commands.calibrating import run_show
    from meshwright.app.cli.commands.exits import Output

    return run_show(calibration, Output.JSON if as_json else Output.PAGE, environment_settings())


@calibrate.command("diff")
@exits
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="KEY, KEY@VERSION or KEY@sha256:DIGITS.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same, to compare with.")],
    as_json: AsJson = False,
) -> int:
    """Show what differs between two stored calibrations."""
    from meshwright.app.cli.commands.calibrating import run_diff
    from meshwright.app.cli.commands.exits import Output

    return run_diff(old, new, Output.JSON if as_json else Output.PAGE, environment_settings())
