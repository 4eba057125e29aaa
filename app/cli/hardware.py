"""The command line of ``hardware``; ``app.cli.main`` holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.options import AsJson, group_of

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
