"""The room that a plan leaves to each of its promises, tightest first."""

from __future__ import annotations

import math

from meshwright.costmodels.queueing.statistics import Percentile
from meshwright.solver.serving.promise.candidates import MAX_UTILISATION
from meshwright.solver.serving.promise.promised import Promised


def room_note(promised: Promised, *, ttft: Percentile, tpot: Percentile, load: float | None) -> str:
    """Return a note of the constraint that binds: shares of the targets that what is promised takes, and of the largest
    allowed load.

    ``load`` is the share of what the engines keep up with, None where clients wait and no load is too high.
    """
    first, later = promised.shares(ttft_s=ttft.high, tpot_s=tpot.high)
    shares = {
        "P95 TTFT": first,
        "P95 TPOT": later,
        "load": 0.0 if load is None else load / MAX_UTILISATION,
    }
    asked = [(share, name) for name, share in shares.items() if share > 0.0 and math.isfinite(share)]
    if not asked:
        return "No target binds"
    ordered = sorted(asked, key=lambda entry: (-entry[0], entry[1]))
    tightest, *others = [f"{name} ({share:.0%})" for share, name in ordered]
    rest = f"; then {', '.join(others)}" if others else ""
    return f"Binds most, by the share of what is allowed that it takes: {tightest}{rest}"
