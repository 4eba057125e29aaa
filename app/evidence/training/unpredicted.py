"""Why a run is not predicted."""

from __future__ import annotations

from meshwright.costmodels.errors import MeshwrightError


class NotPredictedError(MeshwrightError):
    """The table says too little of a run, or something that no cost model answers for; the message is the reason."""
