"""Calibrations of kernels that only serving engines run: fused routed experts, and attention of MLA over prompts and caches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.kernel_file import borrowed_source, is_own, kernel_calibration, read_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError
from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve
from meshwright.costmodels.curves.gemm import ExpertCurve
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware.generations import catalogue_source

NOT_MEASURED = {"median": 0.2, "p95": 0.6}
"""Errors that shipped files state for serving kernels of a device which were not measured on it."""


@dataclass(frozen=True, slots=True)
class ServingCalibration:
    """Curves of one device: ``experts`` by weight format, those of an engine's own kernels by engine before that;
    ``latent_decode`` and ``latent_prefill`` by format of the cache."""

    key: str
    experts: Mapping[str, Fitted[ExpertCurve]]
    engine_experts: Mapping[str, Mapping[str, Fitted[ExpertCurve]]]
    latent_decode: Mapping[str, Fitted[DecodeCurve]]
    latent_prefill: Mapping[str, Fitted[PrefillCurve]]
    provenance: Mapping[str, str]


@cache
def serving_calibration(key: str) -> ServingCalibration:
    """The shipped calibration of a key, also for a measured one's name, or a borrowed one; raises ClusterError when there is
    none."""
    source = None if is_own(key) else borrowed_source(key) or catalogue_source(calibration_key(key))
    if source is not None:
        return _borrowed(calibration_key(key), source)
    key = calibration_key(key)
    folder = files("meshwright.costmodels.hardware").joinpath("calibrations", "serving")
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    if key not in known:
        raise ClusterError(
            "no calibration of serving kernels of this name",
            given=key,
            allowed=", ".join(known),
            remedy="name the nearest device's calibration",
        )
    return _read(json.loads(folder.joinpath(f"{key}.json").read_text(encoding="utf-8")))


def _borrowed(key: str, source: str) -> ServingCalibration:
    cores = kernel_calibration(source).cores
    error = {**NOT_MEASURED, "basis": f"borrowed from {source}, not measured on this device"}
    provenance = {"base": f"no measurement on this device: {source}'s shares of the data sheet's figures"}
    return _read({"key": key, "cores": cores, "base": {"key": source, "error": error}, "provenance": provenance})


def _read(document: Mapping[str, Any]) -> ServingCalibration:
    """Curves of the file; those that it lacks come from its base, scaled by the silicon alone, with the error it states."""
    experts = _curves(document.get("experts", {}))
    engines = {engine: _curves(entries) for engine, entries in document.get("engine_experts", {}).items()}
    latent = {name: read_fitted(entry, DecodeCurve) for name, entry in document.get("latent_decode", {}).items()}
    prompts = {name: read_fitted(entry, PrefillCurve) for name, entry in document.get("latent_prefill", {}).items()}
    if "base" in document:
        base = serving_calibration(document["base"]["key"])
        error = KernelError(**document["base"]["error"])
        cores = float(document["cores"])
        experts = _on_silicon(base.experts, cores, error, base.key) | experts
        if "experts" not in document:
            engines = {engine: _on_silicon(curves, cores, error, base.key) for engine, curves in base.engine_experts.items()}
        latent = {
            name: Fitted(decode.curve._replace(cores=cores), error, base.key) for name, decode in base.latent_decode.items()
        } | latent
        prompts = {
            name: Fitted(prefill.curve._replace(cores=cores), error, base.key) for name, prefill in base.latent_prefill.items()
        } | prompts
    return ServingCalibration(document["key"], experts, engines, latent, prompts, document["provenance"])


def _curves(entries: Mapping[str, Any]) -> dict[str, Fitted[ExpertCurve]]:
    return {name: read_fitted(entry, ExpertCurve) for name, entry in entries.items()}


def _on_silicon(
    curves: Mapping[str, Fitted[ExpertCurve]], cores: float, error: KernelError, base: str
) -> dict[str, Fitted[ExpertCurve]]:
    return {name: Fitted(fitted.curve._replace(cores=cores), error, base) for name, fitted in curves.items()}
