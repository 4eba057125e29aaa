"""The bytes that each device receives when a training run changes its plan, over the nodes of the new plan's cluster."""

from __future__ import annotations

from meshwright.app.pictures.rank_map import MOST_DEVICES, devices_drawing
from meshwright.app.text.figures import gib
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.switching import Switch

_LEVELS = 4
"""Shades, the least first."""


def exchange_drawing(switch: Switch, cluster: Cluster) -> str:
    """Return the devices shaded by what they receive; nothing of clusters too large to draw, whose stages tell."""
    if cluster.n_devices > MOST_DEVICES:
        return ""
    received, kept, sent = switch.total.received, switch.total.kept, switch.total.sent
    most = max(float(received.max()), 1.0)

    def look(device: int) -> tuple[str, str]:
        share = float(received[device]) / most
        level = 0 if share <= 0 else min(_LEVELS, 1 + int(share * (_LEVELS - 1)))
        said = f"keeps {gib(float(kept[device]))}, receives {gib(float(received[device]))}, sends {gib(float(sent[device]))}"
        return f"s{level}", said

    names = [("s0", "receives nothing"), ("s1", "little"), (f"s{_LEVELS}", f"most: {gib(most)}")]
    svg = devices_drawing("What each device receives", cluster, look, names)
    return f'<div class="scroll wide" tabindex="0" role="region" aria-label="What each device receives">{svg}</div>'
