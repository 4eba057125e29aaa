"""``hardware``: the devices and node types of the catalogue, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.table import Table

from meshwright.app.base.console import PageConsole, page_console, plain
from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.figures import counted, gib, seconds, significant
from meshwright.app.base.records import to_document
from meshwright.app.cli.commands.exits import print_json
from meshwright.app.requests.files import read_document
from meshwright.app.requests.own_hardware import GIVEN, DataSheet, keep_node, node_of, own_nodes
from meshwright.costmodels.calibration.kernel_file import (
    borrowed_name,
    borrowed_source,
    errors_of,
    key_of_device,
    nearest_measured,
)
from meshwright.costmodels.cluster.cluster import NEAREST, Device, NodeType
from meshwright.costmodels.errors import ClusterError, InvalidInputError, did_you_mean
from meshwright.costmodels.hardware import devices, devices_by_name, node_types, node_types_by_name
from meshwright.costmodels.units import MIB

_SIXTEEN_BIT = ("bf16", "fp16")


def run_list(text: str | None, *, as_json: bool) -> int:
    """Print the devices and node types whose names or aliases hold a text, or all."""
    own = {node.name: node for node in own_nodes().values()}.values()
    every_device = (*devices(), *{node.device.name: node.device for node in own}.values())
    shown = [device for device in every_device if _has(text, device.name, _aliases(devices_by_name(), device))]
    nodes = [
        node for node in (*node_types(), *own) if _has(text, node.name, _aliases(node_types_by_name(), node), node.device.name)
    ]
    if as_json:
        print_json(
            {
                "devices": [_named(device, devices_by_name()) for device in shown],
                "node_types": [_named(node, node_types_by_name()) for node in nodes],
            }
        )
        return EXIT_GOOD if shown or nodes else EXIT_NO
    console = page_console()
    if not shown and not nodes:
        console.print(plain(f"no device or node type has {text!r} in its name"))
        return EXIT_NO
    for part in (*([_device_table(shown)] if shown else []), *([_node_table(nodes)] if nodes else [])):
        console.print(part)
    console.print(plain("Every figure and its source: meshwright hardware show NAME", style="dim"))
    return EXIT_GOOD


def run_show(name: str, *, as_request: bool, as_json: bool) -> int:
    """Print a device or node type; as the cluster of a request of one node, if asked.

    An alias of both (h100) is the device, and in a request its usual node. Raises InvalidInputError for an unknown name.
    """
    if as_request and as_json:
        raise InvalidInputError("the request's cluster is YAML", given="--request --json", remedy="leave one of them out")
    kept = own_nodes()
    device, node = devices_by_name().get(name), node_types_by_name().get(name)
    if name in kept:
        device, node = kept[name].device, kept[name]
    if device is None and node is None:
        known = {**devices_by_name(), **node_types_by_name()}
        raise ClusterError(
            "unknown device or node type",
            given=name,
            allowed="a name of 'meshwright hardware list'",
            remedy=did_you_mean(name, known, otherwise="describe your own device in the request: docs/request-format.md"),
        )
    if as_request:
        print(_as_request(node or _usual_node(device)), end="")
    elif as_json:
        print_json(
            {
                "device": None if device is None else _document(Device, device),
                "node_type": None if node is None else _document(NodeType, node),
            }
        )
    else:
        console = page_console()
        if device is not None:
            _print(console, _device_figures(device), f"Device {device.name}", _of_device(device))
        if node is not None:
            of = f"nodes of {node.devices_per_node} x {node.device.name}"
            _print(console, _document(NodeType, node), f"Node type {node.name}", of)
    return EXIT_GOOD


def _has(text: str | None, *names: str) -> bool:
    return text is None or any(text.lower() in name.lower() for name in names)


def _aliases(by_name: Mapping[str, Device] | Mapping[str, NodeType], record: Device | NodeType) -> str:
    """The other names of a record, in one text."""
    return ", ".join(sorted(name for name, named in by_name.items() if named is record and name != record.name))


def _named(record: Device | NodeType, by_name: Mapping[str, Device] | Mapping[str, NodeType]) -> dict[str, Any]:
    aliases = _aliases(by_name, record)
    return {"name": record.name, "aliases": aliases.split(", ") if aliases else []}


def _document(kind: type[Device] | type[NodeType], record: Device | NodeType) -> dict[str, Any]:
    """The record as a request writes it, without what is not set."""
    return {field: value for field, value in to_document(kind, record).items() if value not in (None, {})}


def _device_figures(device: Device) -> dict[str, Any]:
    """A device's document with its calibration in words; of a borrowed one the source says why that one."""
    figures = _document(Device, device)
    sources = {"calibration" if field == "borrows" else field: source for field, source in device.sources.items()}
    return figures | {"calibration": _calibration(device), "sources": sources}


def _device_table(shown: list[Device]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", overflow="fold")
    for column in ("memory", "16-bit TFLOPS", "GB/s", "W"):
        table.add_column(column, justify="right")
    table.add_column("calibration", overflow="fold")
    for device in shown:
        peak = next((rate for dtype, rate in device.peak_flops.items() if dtype.value in _SIXTEEN_BIT), 0.0)
        rates = (significant(peak / 1e12), significant(device.memory_bytes_per_s / 1e9), f"{device.power_w:g}")
        table.add_row(plain(device.name), gib(device.memory_bytes), *rates, plain(_calibration(device)))
    return table


def _node_table(shown: list[NodeType]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("node type", "devices"):
        table.add_column(column, overflow="fold")
    for column in ("fabric, GB/s each", "network, GB/s a node"):
        table.add_column(column, justify="right")
    for node in shown:
        rates = (significant(node.intra.bytes_per_s / 1e9), significant(node.inter.bytes_per_s / 1e9))
        table.add_row(plain(node.name), plain(f"{node.devices_per_node} x {node.device.name}"), *rates)
    return table


def _calibration(device: Device) -> str:
    source = borrowed_source(device.calibration)
    return device.calibration if source is None else f"borrowed: {source}"


def _of_device(device: Device) -> str:
    nodes = [node.name for node in node_types() if node.device is device]
    return f"in {counted(len(nodes), 'node type')}" + (f": {', '.join(nodes)}" if nodes else "")


def _print(console: PageConsole, document: Mapping[str, Any], title: str, subtitle: str) -> None:
    """Print a record's figures, each with the number of its source; the sources stand below, each once."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("figure", "value", "source"):
        table.add_column(column, overflow="fold", justify="right" if column == "value" else "left")
    sources: Mapping[str, str] = document.get("sources", {})
    numbers: dict[str, int] = {}
    for field, value in document.items():
        if field in ("name", "sources", "device"):
            continue
        for name, words in _rows(field, value):
            source = sources.get(name, sources.get(field))
            number = "" if source is None else f"[{numbers.setdefault(source, len(numbers) + 1)}]"
            table.add_row(plain(name), plain(words), number)
    for part in (plain(title, style="bold"), plain(subtitle), table):
        console.print(part)
    for source, place in numbers.items():
        console.print(plain(f"[{place}] {source}", style="dim"))


def _rows(field: str, value: Any) -> list[tuple[str, str]]:
    """A figure as rows of its name and words; one row for each figure of a record."""
    if isinstance(value, Mapping):
        return [row for name, inner in value.items() for row in _rows(f"{field}.{name}", inner)]
    return [(field, value if isinstance(value, str) else _in_units(field, value))]


def _in_units(field: str, value: float) -> str:
    """Return a figure in the unit that its name says."""
    last = field.rpartition(".")[2]
    if field.startswith("peak_flops"):
        return f"{significant(value / 1e12)} TFLOP/s"
    if last.endswith("bytes_per_s"):
        return f"{significant(value / 1e9)} GB/s"
    if last == "communicator_bytes":
        return f"{value / MIB:g} MiB"
    if last.endswith("_bytes"):
        return gib(value)
    if last.endswith("_s"):
        return seconds(value)
    if last.endswith("_w"):
        return f"{value:g} W"
    if last == "price_per_hour":
        return f"{value:.2f} USD"
    return f"{value:g}"


def _usual_node(device: Device | None) -> NodeType:
    """The node type that has an alias of the device, or its first by name; raises InvalidInputError where there is none."""
    assert device is not None
    usual = [node for name, node in node_types_by_name().items() if devices_by_name().get(name) is device]
    found = next((node for node in (*usual, *node_types()) if node.device is device), None)
    if found is None:
        raise InvalidInputError(
            "no node type has this device",
            given=device.name,
            remedy="describe the node in the request: docs/request-format.md",
        )
    return found


def _as_request(node: NodeType) -> str:
    """The cluster of a request with one node of a type, every figure written out."""
    written = _document(NodeType, node)
    written["device"] = _document(Device, node.device)
    cluster = {"groups": [{"name": "mine", "node": written, "nodes": 1}]}
    return yaml.safe_dump({"cluster": cluster}, sort_keys=False, allow_unicode=True, width=100)


# ``hardware add``: a device of a user's own, kept by its data sheet or a file of a node type.

_REQUIRED = 5
"""Options that a data sheet needs."""


def run_add(sheet: DataSheet, *, missing: Sequence[str]) -> int:
    """Keep the node type of a file, or of a data sheet of which nothing is ``missing``; print what was not given."""
    is_file = sheet.name.endswith((".json", ".yaml", ".yml"))
    if is_file and len(missing) < _REQUIRED:
        raise InvalidInputError("a file says all of a node type", given=sheet.name, remedy="leave the options out")
    if missing and not is_file:
        raise InvalidInputError(
            "a device needs its data sheet",
            given=sheet.name,
            allowed="--memory, --bandwidth, --bf16, --fabric and --network",
            remedy=f"add {', '.join(missing)}, as in: "
            f"meshwright hardware add {sheet.name} --memory 24GiB --bandwidth 1008GB/s --bf16 165TFLOPS "
            "--fabric 12.5GB/s --network 100Gb",
        )
    document = read_document(str(Path(sheet.name)), what="node type") if is_file else node_of(sheet)
    if not isinstance(document, Mapping):
        raise ClusterError("a node type is an object", given=type(document).__name__)
    node, path = keep_node(document)
    _print_added(node, path)
    return EXIT_GOOD


def _print_added(node: NodeType, path: Path) -> None:
    console, device = page_console(), node.device
    console.print(plain(f"Kept {node.name}, nodes of {node.devices_per_node} x {device.name}: {path}"))
    if device.calibration == NEAREST:
        source = nearest_measured(device)
        errors = errors_of(borrowed_name(key_of_device(device.name), source))
        console.print(
            plain(
                f"Kernels are borrowed from {source} at reduced rates. Matrix products err by {errors.matrix[0]:.0%} at the "
                f"median and {errors.matrix[1]:.0%} at P95, attention by {errors.attention[0]:.0%} and "
                f"{errors.attention[1]:.0%} ({errors.basis})"
            )
        )
    for field, source in node.sources.items():
        if source != GIVEN:
            console.print(plain(f"{field}: {source}"))
    console.print(plain(f"Next: meshwright plan qwen3-8b --gpus {node.devices_per_node}x{device.name} --batch 64 --seq 4096"))
