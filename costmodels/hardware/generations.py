"""Generations of accelerators: how fast kernels are that were not measured on each device, one data file a generation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from meshwright.costmodels.errors import ClusterError

FOLDER = "generations"

OTHER = "other"
"""The generation of devices that the catalogue does not have."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factors on the time of both passes of a kernel."""

    forward: float
    backward: float

    def __post_init__(self) -> None:
        if not min(self.forward, self.backward) >= 1.0:
            raise ClusterError("bad slowdown of a generation", given=self, allowed="factors of 1 or more")


@dataclass(frozen=True, slots=True)
class Speedup:
    """The time of a kernel's passes in 16 bits over that in fp8, at some lengths of sequences; ends hold beyond them."""

    tokens: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]

    def __post_init__(self) -> None:
        as_long = len(self.tokens) == len(self.forward) == len(self.backward) > 0
        growing = list(self.tokens) == sorted(set(self.tokens))
        if not (as_long and growing and min(*self.tokens, *self.forward, *self.backward) > 0):
            raise ClusterError("bad speedup of a generation", given=self, allowed="growing lengths, positive factors for each")

    def at(self, tokens: float) -> tuple[float, float]:
        """Return the factors of both passes at a length, on a log scale between those that were measured."""
        at = math.log2(tokens)
        forward, backward = (np.interp(at, np.log2(self.tokens), each) for each in (self.forward, self.backward))
        return float(forward), float(backward)


@dataclass(frozen=True, slots=True)
class AllReduceKernels:
    """An engine's kernels for small tensors: latencies, and the shares of the fabric's bandwidth that their reads reach."""

    one_shot_s: float
    one_shot_share: float
    two_shots_s: float
    two_shots_share: float

    def __post_init__(self) -> None:
        latencies, shares = (self.one_shot_s, self.two_shots_s), (self.one_shot_share, self.two_shots_share)
        if not (min(latencies) >= 0.0 and min(shares) > 0.0 and max(shares) <= 1.0):
            raise ClusterError("bad kernels of a generation", given=self, allowed="latencies of 0 or more, shares up to 1")


@dataclass(frozen=True, slots=True)
class Generation:
    """The figures that devices of one generation have in common.

    flash_attention_2_slowdown   time of FlashAttention-2 over that of the fastest attention kernels
    fp8_attention_speedup        of attention in fp8; None: not measured
    engine_all_reduce            serving engines' kernels, by name of the engine
    kubernetes_resource          the name under which its device plugin offers devices to pods
    sources                      where each figure is from
    """

    name: str
    flash_attention_2_slowdown: Slowdown
    engine_all_reduce: Mapping[str, AllReduceKernels]
    kubernetes_resource: str
    sources: Mapping[str, str]
    fp8_attention_speedup: Speedup | None = None


@cache
def generation_of(calibration: str) -> Generation:
    """The generation of the catalogue's devices that a calibration stands for, or `OTHER` where it is a user's own device's;
    raises ClusterError where they differ."""
    found = {document["generation"] for document in _documents("devices") if document["calibration"] == calibration}
    if len(found) > 1:
        raise ClusterError(
            "devices of several generations have this calibration",
            given=f"{calibration}: {', '.join(sorted(found))}",
            allowed="one generation",
            remedy="give each its own calibration file",
        )
    return generation(found.pop() if found else OTHER)


@cache
def catalogue_source(calibration: str) -> str | None:
    """The calibration that the catalogue's devices of a key borrow from; None where they have their own, or there are none."""
    documents = (document for document in _documents("devices") if document["calibration"] == calibration)
    return next((document["borrows"] for document in documents if "borrows" in document), None)


@cache
def generation(name: str) -> Generation:
    """The generation of a name; raises ClusterError when there is no file of it."""
    known = {document["name"]: document for document in _documents(FOLDER)}
    if name not in known:
        raise ClusterError(
            "unknown generation of devices",
            given=name,
            allowed=", ".join(sorted(known)),
            remedy="name the nearest one, or add its file",
        )
    document = dict(known[name])
    speedup = document.pop("fp8_attention_speedup", None)
    return Generation(
        flash_attention_2_slowdown=Slowdown(**document.pop("flash_attention_2_slowdown")),
        engine_all_reduce={
            engine: AllReduceKernels(**kernels) for engine, kernels in document.pop("engine_all_reduce").items()
        },
        fp8_attention_speedup=None if speedup is None else Speedup(**{key: tuple(of) for key, of in speedup.items()}),
        **document,
    )


@cache
def _documents(folder: str) -> tuple[Mapping[str, Any], ...]:
    entries = files("meshwright.costmodels.hardware").joinpath(folder).iterdir()
    texts = (entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".json"))
    return tuple(json.loads(text) for text in texts)
