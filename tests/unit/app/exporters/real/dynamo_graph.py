"""Ask Dynamo's own records about a graph; prints its components, and the fields that the records do not know."""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml
from bare import bare  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel

bare("dynamo", "dynamo.common", "dynamo.common.utils", "dynamo.planner", "dynamo.profiler")
from dynamo.profiler.utils.config import Config, get_main_container  # type: ignore[import-not-found,unused-ignore]  # noqa: E402


def unknown(record: Any, path: str) -> list[str]:
    """The fields below a record that it keeps without knowing them."""
    if isinstance(record, list):
        return [field for place, each in enumerate(record) for field in unknown(each, f"{path}[{place}]")]
    if not isinstance(record, BaseModel):
        return []
    below = [field for name in type(record).model_fields for field in unknown(getattr(record, name), f"{path}.{name}")]
    return [f"{path}.{name}" for name in record.model_extra or {}] + below


graph = Config.model_validate(yaml.safe_load(json.loads(sys.argv[1])))
components = {}
for component in graph.spec.components:
    main = get_main_container(component)
    nodes = 1 if component.multinode is None else component.multinode.nodeCount
    words = [*main.command, *(main.args or [])]
    components[component.name] = {"replicas": component.replicas, "nodes": nodes, "words": words, "resources": main.resources}
print("ANSWER" + json.dumps({"components": components, "unknown": unknown(graph, "")}))
