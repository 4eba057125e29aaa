"""The parts that exporters of serving engines share: the engine that a plan was made for, its longest request, layers by
stage."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from meshwright.app.models.catalog.copies import hub_id_of
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import CACHE_BLOCK_TOKENS, ServingEngine
from meshwright.costmodels.serving.speculation import HAS_CHECKPOINT, Draft
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.problem.launchers.decoders import is_layer
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import EmpiricalLength, FixedLength, TraceArrivals
from meshwright.solver.verify.serving.degrees import kv_bytes_per_token

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name of the Hugging Face Hub: an owner, a slash and a repository (huggingface_hub, validate_repo_id)."""
_ENDINGS = re.compile(r" \((?:text decoder|assumed decoder|sizes of [^()]*)\)\Z")
"""Endings that say how a model was read: as the decoder of one of text and images, with the sizes of another."""


def checkpoint(model: str) -> str:
    """The checkpoint that a server is told to load: as the user names it, by the Hub's name of a catalogue model, else a
    directory of that name."""
    name = _ENDINGS.sub("", model)
    if _HUB_ID.fullmatch(name) or name.startswith(("/", "./", "../")):
        return name
    return hub_id_of(name) or f"./{name}"


def checkpoint_assumption(model: str) -> str:
    """Return the sentence on the checkpoint's place that the command takes for granted."""
    named = checkpoint(model)
    if named.startswith("./"):
        return f"{named} stands for the directory or the Hugging Face name of the checkpoint"
    return f"{named} is loaded from the Hugging Face Hub or its cache: put the directory of your checkpoint there if it has one"


def balancer_words(workload: ServingWorkload) -> str:
    """Words for what stands before replicas that are servers of their own."""
    return f"a load balancer that {_DEALS[workload.router]}"


_DEALS = {
    Router.RANDOM: "spreads requests evenly",
    Router.ROUND_ROBIN: "deals requests out round robin",
    Router.LEAST_LOADED: "gives each request to the server with the fewest (least_conn of nginx, LEAST_REQUEST of Envoy)",
}


def require_engine(request: ServingRequest, engine: ServingEngine) -> None:
    """Refuse plans that were made for another engine; raises ExportError."""
    if request.search.engine is not engine:
        raise ExportError(
            "the plan is for another engine",
            given=request.search.engine.value,
            allowed=engine.value,
            remedy=f"plan with --launcher {engine.value}, in a request file search.engine: {engine.value}",
        )


def require_checkpoint(draft: Draft, *, launcher: str) -> None:
    """Refuse a draft whose weights are not named; raises ExportError."""
    if draft.method in HAS_CHECKPOINT and draft.model is None:
        raise ExportError(
            f"{launcher} needs the checkpoint of a draft of method {draft.method.value}",
            given="no model",
            remedy="name its directory or Hugging Face name in workload.speculation.draft.model",
        )


def uneven_layers(workers: Workers, request: ServingRequest, *, launcher: str) -> tuple[int, ...]:
    """Layers of each stage where stages differ, else none; raises ExportError for a stage without any."""
    counts = tuple(sum(s.count for s in stage.blocks if is_layer(request.model.block(s.block))) for stage in workers.stages)
    if len(set(counts)) == 1:
        return ()
    if min(counts) == 0:
        raise ExportError(f"{launcher} needs a layer on every pipeline stage", given=list(counts))
    return counts


def longest_that_fits(workers: Workers, request: ServingRequest) -> int:
    """Return the tokens of the longest request that the caches of workers hold, in whole blocks, of a device that is filled to
    a hundredth of it.

    Every layer is counted as keeping every token: layers with a window keep less.
    """
    workload, model = request.workload, request.model
    blocks = tuple(
        replace(block, operators=tuple(replace(each, window=None) for each in block.operators)) for block in model.blocks
    )
    wide = DType.FP16 if workload.precision is DType.FP16 else DType.BF16
    whole = replace(
        request,
        model=replace(model, blocks=blocks),
        workload=replace(workload, kv_dtype=workload.kv_dtype or wide),
    )
    found = []
    for stage in workers.stages:
        device_bytes = min(
            group.node.device.memory_bytes
            for devices in stage.devices
            for group in request.cluster.groups_spanned(devices.first, devices.count)
        )
        filled_bytes = math.floor(min(stage.memory.total_bytes / device_bytes, 1.0) * 100) / 100 * device_bytes
        free_bytes = stage.memory.kv_cache_bytes - (stage.memory.total_bytes - filled_bytes)
        per_token = kv_bytes_per_token(workers.axes, whole, stage)
        if per_token:
            found.append(int(free_bytes / (per_token * CACHE_BLOCK_TOKENS)) * CACHE_BLOCK_TOKENS)
    return min(found, default=UNLIMITED)


UNLIMITED = 2**62
"""Tokens that a model without a cache keeps."""


def own_length(request: ServingRequest) -> int | None:
    """Return the tokens of the longest sequence that the model's file allows; None where it is not known."""
    stated = request.model.hyperparameters
    return None if stated is None else stated.positions


def longest_request(workload: ServingWorkload) -> int | None:
    """Tokens of the longest request; None of a distribution without an end."""
    if isinstance(workload.arrivals, TraceArrivals):
        lengths = zip(workload.arrivals.prompt_tokens, workload.arrivals.output_tokens, strict=True)
        return max(prompt + output for prompt, output in lengths)
    prompt, output = _longest(workload.prompt_tokens), _longest(workload.output_tokens)
    return None if prompt is None or output is None else prompt + output


def _longest(length: Length | None) -> int | None:
    match length:
        case FixedLength():
            return length.fixed
        case EmpiricalLength():
            return max(length.empirical)
        case _:
            return None
