"""``hardware add``: a device of a user's own, kept by its data sheet or a file of a node type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.app.errors import EXIT_GOOD
from meshwright.app.requests.files import read_document
from meshwright.app.text.console import page_console, plain
from meshwright.app.ways_in.own_hardware import GIVEN, DataSheet, keep_node, node_of
from meshwright.costmodels.calibration.borrowed import borrowed_name, errors_of, key_of_device, nearest_measured
from meshwright.costmodels.cluster.cluster import NEAREST, NodeType
from meshwright.costmodels.errors import ClusterError, InvalidInputError

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
    _print(node, path)
    return EXIT_GOOD


def _print(node: NodeType, path: Path) -> None:
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
