"""Ray Serve LLM: an application of replicas of vLLM, whose workers Ray places on the nodes of its cluster.

Keys are those of ServeDeploySchema (ray/serve/schema.py) and LLMConfig (ray/llm), engine arguments vLLM's own by name.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.exporters.schedulers.job import RAY, JobFile, named
from meshwright.app.launching.exporters.schedulers.kubernetes import resource_of
from meshwright.app.launching.exporters.schedulers.serving import Serving, require_launcher, serving_of
from meshwright.app.launching.parts.export import Export, ReplicaEngine
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher

FILE = "serve.yaml"
_RANKS = "data_parallel_size"
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
"""Devices that Ray counts as GPU, by the names that plugins give them."""


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the configuration of a serving plan; raises ExportError for one that Ray Serve LLM can't run."""
    require_launcher(launched, (Launcher.VLLM,), "Ray Serve LLM runs vLLM")
    serving = serving_of(launched, answered, "a Ray Serve application")
    engine = serving.servers.engine
    assert engine is not None, "vLLM's engine is told apart"
    resource = resource_of(serving.device)
    if resource not in _GPUS:
        raise ExportError(
            "Ray places replicas of Ray Serve LLM on GPUs",
            given=resource,
            allowed=", ".join(_GPUS),
            remedy="export with --on kubernetes",
        )
    config, assumed = _llm_config(serving, engine)
    # Ranks that share experts are replicas that start together, which the other builder makes.
    shared = config["engine_kwargs"].get(_RANKS, 1) > 1
    application = {
        "name": serving.name,
        "route_prefix": "/",
        "import_path": f"ray.serve.llm:{'build_dp_openai_app' if shared else 'build_openai_app'}",
        "args": {"llm_config": config} if shared else {"llm_configs": [config]},
    }
    said = (
        *assumed,
        f"the nodes of the Ray cluster have {serving.runs}, ray[llm] and the right to load the checkpoint",
        f"Ray packs the {serving.servers.devices // engine.copies} devices of a replica on as few nodes as are free",
    )
    return JobFile(FILE, yaml_text({"applications": [application]}), f"serve deploy {FILE}", said)


def _llm_config(serving: Serving, engine: ReplicaEngine) -> tuple[dict[str, Any], tuple[str, ...]]:
    name = named(serving.device, RAY, where="Ray")
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": engine.model.removeprefix("./"), "model_source": engine.model},
        **({} if name is None else {"accelerator_type": name.name}),
        "engine_kwargs": _arguments(engine.words),
        "deployment_config": {"num_replicas": serving.servers.count * engine.copies},
        **({"runtime_env": {"env_vars": dict(engine.environment)}} if engine.environment else {}),
    }
    if name is None:
        return config, (f"all devices of the Ray cluster are {serving.device.name}: Ray has no name for them",)
    return config, name.assumptions


def _arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """Flags as arguments of Python: of a flag without a value True, of one of JSON what it says."""
    found: dict[str, Any] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, joined = word.removeprefix("--").partition("=")
        following = words[place + 1] if place + 1 < len(words) else "--"
        value = joined or (None if following.startswith("--") else following)
        found[name.replace("-", "_")] = True if value is None else _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
