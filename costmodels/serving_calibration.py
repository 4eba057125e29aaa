"""Calibrations of kernels that only serving engines run: fused routed experts, and decode attention over MLA's latent cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from costmodels.attention_curve import DecodeCurve
from costmodels.calibration import calibration_key
from costmodels.errors import ClusterError
from costmodels.expert_curve import ExpertCurve
from costmodels.kernel_calibration import Fitted, KernelError
from costmodels.kernel_calibration_file import read_fitted


@dataclass(frozen=True, slots=True)
class ServingCalibration:
    """Curves of one device: ``experts`` by weight format, ``latent_decode`` by format of the cache."""

    key: str
    experts: Mapping[str, Fitted[ExpertCurve]]
    latent_decode: Mapping[str, Fitted[DecodeCurve]]
    provenance: Mapping[str, str]


@cache
def serving_calibration(key: str) -> ServingCalibration:
    """The shipped calibration of a key, also for a measured one's name; raises ClusterError when there is none."""
    key = calibration_key(key)
    folder = files("costmodels.hardware").joinpath("calibrations", "serving")
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    if key not in known:
        raise ClusterError(
            "no calibration of serving kernels of this name",
            given=key,
            allowed=", ".join(known),
            remedy="name the nearest device's calibration",
        )
    return _read(json.loads(folder.joinpath(f"{key}.json").read_text(encoding="utf-8")))


def _read(document: Mapping[str, Any]) -> ServingCalibration:
    """Curves of the file; those that it lacks come from its base, scaled by the silicon alone, with the error it states."""
    experts = {name: read_fitted(entry, ExpertCurve) for name, entry in document.get("experts", {}).items()}
    latent = {name: read_fitted(entry, DecodeCurve) for name, entry in document.get("latent_decode", {}).items()}
    if "base" in document:
        base = serving_calibration(document["base"]["key"])
        error = KernelError(**document["base"]["error"])
        for name, fitted in base.experts.items():
            curve = fitted.curve._replace(cores=float(document["cores"]))
            experts.setdefault(name, Fitted(curve, error, base.key))
        for name, decode in base.latent_decode.items():
            latent.setdefault(name, Fitted(decode.curve._replace(cores=float(document["cores"])), error, base.key))
    return ServingCalibration(document["key"], experts, latent, document["provenance"])
