"""Native model graphs: JSON (or YAML) in the schema ``meshwright.model-graph/1``."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.importers.documents import parse_document
from costmodels.errors import ModelError
from solver.graph import ModelGraph

_SHOWN_ERRORS = 5


def read_native_graph(text: bytes) -> ModelGraph:
    """The model graph in a JSON or YAML document.

    Raises InvalidInputError for text that can't be read, ModelError (one of its kinds) for a graph that can't be used.
    """
    return validate_native_graph(parse_document(text, what="model graph"))


def validate_native_graph(document: Any) -> ModelGraph:
    """The model graph in a parsed document; raises ModelError that names the first fields that are wrong."""
    try:
        # Validated as JSON, so that strict records take lists for tuples and words for enums, and nothing else.
        return _adapter().validate_json(json.dumps(document, allow_nan=False))
    except ValidationError as error:
        raise ModelError(f"model graph can't be used: {_summary(error)}") from None


@cache
def _adapter() -> TypeAdapter[ModelGraph]:
    return TypeAdapter(ModelGraph)


def _summary(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(str(step) for step in problem['loc']) or 'graph'}: {problem['msg']}" for problem in problems]
    more = len(lines) - _SHOWN_ERRORS
    return "; ".join(lines[:_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")
