"""The predictions: public requests, asked by ``meshwright.plan`` and ``meshwright.predict`` before anything is run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import meshwright
from benchmarks.gpu_truth.cases import Cases, Decoder, ServingPoint, TrainingCase
from benchmarks.gpu_truth.isolated import Tell
from benchmarks.gpu_truth.machine import CPU, Machine
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine
from meshwright.costmodels.units import DType

MEASURED, CATALOGUE = "measured", "catalogue"
"""Predictions with the calibration that was just measured, and with what Meshwright ships for the device."""

ENGINE = ServingEngine.SGLANG
"""The engine of serving requests: its host's work hides under the device's, as that of a loop of CUDA graphs does."""

PROFILES = {"eager": "torchtitan-0.3", "compiled": "torchtitan-0.3-compiled"}


def look(tell: Tell, *, machine: Machine, name: str | None) -> None:
    """Tell what the device is, and its calibration key: the catalogue's where it has the device."""
    figures = machine.described()
    known = name or (None if machine.backend == CPU else figures["name"])
    key = None if known is None else catalogue_key(known)
    own = "".join(letter if letter.isalnum() else "_" for letter in figures["name"].lower())
    tell({"machine": figures, "known": known if key else None, "key": key or f"here_{own}"})


def catalogue_key(name: str) -> str | None:
    """The calibration key of the catalogue's device of a name, as drivers give it; None where it has none."""
    try:
        document = training_document(TrainingCase("any", Decoder(1, 64, 1, 1, 64, 64), 1, 1, 64), "eager", f"1x{name}", "fp16")
        cluster = resolve_request(document, files=NoFiles()).cluster
    except meshwright.InvalidInputError:
        return None
    return str(cluster.groups[0].node.device.calibration).partition("~")[0]


def training_document(
    case: TrainingCase, mode: str, cluster: Any, precision: str, *, calibration: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The request of a training step as ``training`` runs it: one plan is left to search."""
    # PyTorch's attention is what was measured: a calibration of it needs no factor from another kernel to this one.
    attention = {} if calibration is None else {"attention": "native"}
    return {
        "schema": "meshwright.request/1",
        "model": case.decoder.model(case.name).source,
        "cluster": cluster,
        "workload": {
            "kind": "training",
            "global_batch": case.global_batch,
            "seq_len": case.seq_len,
            "precision": precision,
            "gradient_dtype": "fp32",
            "implementation": {"profile": PROFILES[mode], **attention},
        },
        # Memory is compared, not kept: a median that fits is enough.
        "search": {"microbatch": [case.microbatch], "recompute": ["none"], "zero_stages": [0], "risk": 0.5},
        "calibrations": [] if calibration is None else [calibration],
    }


def serving_document(
    decoder: Decoder, point: ServingPoint, cluster: Any, precision: str, *, calibration: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The request of a closed loop."""
    return {
        "schema": "meshwright.request/1",
        "model": decoder.model("served").source,
        "cluster": cluster,
        "workload": {
            "kind": "serving",
            "arrivals": {"process": "closed", "concurrency": point.clients},
            "prompt_tokens": {"fixed": point.prompt_tokens},
            "output_tokens": {"fixed": point.output_tokens},
            "precision": precision,
        },
        "objective": "devices",
        "search": {"engine": ENGINE.value, "tp": [1], "pp": [1]},
        "calibrations": [] if calibration is None else [calibration],
    }


def own_cluster(machine: dict[str, Any], board: dict[str, Any], key: str) -> dict[str, Any]:
    """A cluster of one device that the catalogue does not have: its peaks are the best that was measured."""
    link = {"name": "none", "bytes_per_s": 1e9, "latency_s": 0.0}
    device = {
        "name": key, "memory_bytes": machine["memory_bytes"], "peak_flops": board["peak_flops"],
        "memory_bytes_per_s": board["memory_bytes_per_s"], "calibration": key,
    }  # fmt: skip
    node = {"name": f"{key}-node", "device": device, "devices_per_node": 1, "intra": link, "inter": link}
    return {"groups": [{"name": "here", "node": node, "nodes": 1}]}


def run(
    tell: Tell, *, machine: dict[str, Any], key: str, known: str | None, cases: Cases, calibration: Path, folder: Path
) -> None:
    """Tell every prediction by its basis, and keep the requests that were asked in ``folder``.

    known   name of the device in the catalogue, if it is there
    """
    document = json.loads(calibration.read_text(encoding="utf-8")) if calibration.exists() else None
    bases: dict[str, tuple[Any, Any]] = {}
    if document is not None:
        cluster = f"1x{known}" if known else own_cluster(machine, document["board"], key)
        bases[MEASURED] = (cluster, document)
    if known:
        bases[CATALOGUE] = (f"1x{known}", None)
    found: dict[str, Any] = {}
    for basis, (cluster, given) in bases.items():
        of_basis = found.setdefault(basis, {"training": {}, "serving": {}})
        for case in cases.training:
            for mode in PROFILES:
                request = training_document(case, mode, cluster, machine["precision"], calibration=given)
                of_basis["training"][f"{case.name} {mode}"] = _kept(request, folder, f"{case.name}-{mode}-{basis}", _training)
                tell(found)
        template: dict[str, Any] = {}
        for number, point in enumerate(cases.serving):
            request = serving_document(cases.served, point, cluster, machine["precision"], calibration=given)
            ask = partial(_serving, point=point, template=template)
            answer = _kept(request, folder, f"serving-{number}-{basis}", ask)
            if "refused" not in answer:
                cache_bytes = point.cache_elements(cases.served) * DType(machine["precision"]).size_bytes
                answer["allocator_bytes"] = answer["weights_bytes"] + answer["transient_bytes"] + cache_bytes
            of_basis["serving"][point.name] = answer
            tell(found)


def _kept(request: dict[str, Any], folder: Path, name: str, ask: Any) -> dict[str, Any]:
    """The answer to a request, which is kept in a file; or why there is none."""
    (folder / f"{name}.request.json").write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
    try:
        answer: dict[str, Any] = ask(request)
    except meshwright.MeshwrightError as error:
        return {"refused": str(error)}
    return answer


def _training(request: dict[str, Any]) -> dict[str, Any]:
    plan = meshwright.plan(request)
    if not plan.feasible:
        return {"refused": plan.reason}
    predicted, memory = plan.document["predicted"], plan.document["stages"][0]["memory"]
    band = (predicted["bands"] or {}).get("step_time_s") or {"low": None, "high": None}
    return {
        "step_time_s": predicted["step_time_s"],
        "low_s": band["low"],
        "high_s": band["high"],
        "peak_memory_bytes": predicted["peak_memory_bytes"],
        "peak_memory_p95_bytes": predicted["peak_memory_p95_bytes"],
        "allocator_bytes": predicted["peak_memory_bytes"] - memory["overhead_bytes"],
        "breakdown": plan.document["breakdown"],
    }


def _serving(request: dict[str, Any], point: ServingPoint, template: dict[str, Any]) -> dict[str, Any]:
    """Times to the first and per further token where every prompt goes into one step.

    The first point is planned; the others are predicted of the same plan with the batch limits of their own.
    """
    if not template:
        template |= meshwright.plan(request).document
    if not template["feasible"]:
        return {"refused": template["reason"]}
    limits = {"max_num_seqs": point.clients, "max_num_batched_tokens": point.clients * point.prompt_tokens}
    plan = meshwright.predict(request, template | {"serving": template["serving"] | limits})
    predicted, memory = plan.document["predicted"], plan.document["stages"][0]["memory"]
    return {
        # No server stands before this loop: no front end, no tokenizer, no queue of messages.
        "ttft_s": predicted["ttft_p95_s"] - ENGINE_PROFILES[ENGINE].outside_s,
        "outside_s": ENGINE_PROFILES[ENGINE].outside_s,
        "tpot_s": predicted["tpot_p95_s"],
        "weights_bytes": memory["weights_bytes"],
        "transient_bytes": memory["transient_bytes"],
    }
