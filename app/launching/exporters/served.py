"""The parts that exporters of serving engines share: the engine that a plan was made for, its longest request, layers by
stage."""

from __future__ import annotations

import re

from meshwright.app.launching.exporters.shape import is_layer
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import HAS_CHECKPOINT, Draft
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import EmpiricalLength, FixedLength, TraceArrivals

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name of the Hugging Face Hub: an owner, a slash and a repository (huggingface_hub, validate_repo_id)."""
_DECODER_OF = " (text decoder)"
"""Ending that the importer adds to the name of a model of text and images, of which it plans the decoder."""


def checkpoint(model: str) -> str:
    """The checkpoint that a server is told to load: the Hub's name where the model has one, else a directory of that name."""
    name = model.removesuffix(_DECODER_OF)
    return name if _HUB_ID.fullmatch(name) else f"./{model}"


def checkpoint_assumption(model: str) -> str:
    """Return the sentence on the checkpoint's place that the command takes for granted."""
    named = checkpoint(model)
    if named.startswith("./"):
        return f"{named} stands for the directory or the Hugging Face name of the checkpoint"
    return f"{named} is loaded from the Hugging Face Hub or its cache: put the directory of your checkpoint there if it has one"


def require_engine(request: ServingRequest, engine: ServingEngine) -> None:
    """Refuse plans that were made for another engine; raises ExportError."""
    if request.search.engine is not engine:
        raise ExportError(
            "the plan is for another engine",
            given=request.search.engine.value,
            allowed=engine.value,
            remedy=f"plan with search.engine {engine.value}",
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
