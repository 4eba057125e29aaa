"""The names by which SkyPilot asks clouds for devices, and Ray for those of its nodes.

Sources: SkyPilot's canonical names (sky/utils/gpu_names.py, sky/catalog), Ray's ray/util/accelerators/accelerators.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.hardware import devices, devices_by_name

SKYPILOT: Mapping[str, str] = {
    "a100-pcie-80gb": "A100-80GB",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "a10g-24gb": "A10G",
    "a40-48gb": "A40",
    "b200-sxm-180gb": "B200",
    "b300-sxm-270gb": "B300",
    "gb200-186gb": "GB200",
    "gb300-288gb": "GB300",
    "gh200-96gb": "GH200",
    "h100-pcie-80gb": "H100",
    "h100-sxm-80gb": "H100",
    "h200-sxm-141gb": "H200",
    "l4-24gb": "L4",
    "l40s-48gb": "L40S",
    "mi300x-192gb": "MI300X",
    "rtx-4090-24gb": "RTX4090",
    "rtx-5090-32gb": "RTX5090",
    "rtx-a6000-48gb": "A6000",
    "rtx-pro-6000-96gb": "RTXPRO6000",
    "t4-16gb": "T4",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100-32GB",
}
"""By device of the catalogue."""

RAY: Mapping[str, str] = {
    "a100-pcie-80gb": "A100",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100",
    "a10g-24gb": "A10G",
    "b200-sxm-180gb": "B200",
    "b300-sxm-270gb": "B300",
    "gb200-186gb": "GB200",
    "gb300-288gb": "GB300",
    "h100-nvl-94gb": "H100",
    "h100-pcie-80gb": "H100",
    "h100-sxm-80gb": "H100",
    "h100-sxm-96gb-hbm2e": "H100",
    "h20-96gb": "H20",
    "h200-sxm-141gb": "H200",
    "l4-24gb": "L4",
    "l40s-48gb": "L40S",
    "mi300x-192gb": "AMD-Instinct-MI300X-OAM",
    "mi325x-256gb": "AMD-Instinct-MI325X-OAM",
    "mi355x-288gb": "AMD-Instinct-MI355X-OAM",
    "rtx-pro-6000-96gb": "RTX-PRO-6000",
    "t4-16gb": "T4",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100",
}
"""By device of the catalogue; the size of an A100's memory is no name that Ray gives nodes by itself."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name for the devices of a plan, and what it takes for granted."""

    name: str
    assumptions: tuple[str, ...]


def named(device: Device, names: Mapping[str, str], *, where: str) -> Named | None:
    """Return the name of a plan's devices by a table, None where it has none."""
    known = devices_by_name().get(device.name)
    name = None if known is None else names.get(known.name)
    if known is not None:
        return None if name is None else Named(name, ())
    # A device that a request describes has a name of its own; its calibration and memory say which it is.
    alike = [each for each in devices() if each.calibration == device.calibration and each.name in names]
    if not alike:
        return None
    name = names[min(alike, key=lambda each: abs(each.memory_bytes - device.memory_bytes)).name]
    return Named(name, (f"the request's own devices are what {where} calls {name}",))


def require_named(device: Device, names: Mapping[str, str], *, where: str) -> Named:
    """Return the name of a plan's devices by a table; raises ExportError where it has none."""
    found = named(device, names, where=where)
    if found is None:
        raise ExportError(
            f"{where} has no name for the devices of this plan",
            given=device.name,
            allowed=", ".join(sorted(set(names.values()))),
            remedy="export for slurm or kubernetes",
        )
    return found
