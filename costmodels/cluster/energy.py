"""Energy of accelerators from how long each kind of work keeps them busy.

Power is the idle power, and of what lies between it and full power a share for each kind of work (the form of the linear model
of Fan, Weber and Barroso, ISCA'07, by component). Host, network and cooling are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device

COMPUTING_ACTIVITY = 1.0
"""Share of the range that computing takes: all of it, since matrix units at work run boards into their power limit."""

COMMUNICATING_ACTIVITY = 0.5
"""Share that waiting for collectives takes: links, memory and the cores that copy work, matrix units rest. No measured split is
public, so half is taken; exposed communication is a small part of good plans."""


@dataclass(frozen=True, slots=True)
class BusyTime:
    """The time that a device works in a step of ``whole_s``; what is left over it idles."""

    computing_s: float
    communicating_s: float
    whole_s: float


def device_energy_j(device: Device, busy: BusyTime) -> float:
    """Joules of one device; never below its idle power, nor above its full power, for the whole time."""
    active_s = COMPUTING_ACTIVITY * busy.computing_s + COMMUNICATING_ACTIVITY * busy.communicating_s
    active_s = min(active_s, busy.whole_s)
    return device.idle_power_w * busy.whole_s + (device.power_w - device.idle_power_w) * active_s
