"""Ask Ray about an application of Ray Serve LLM; prints what its records make of it."""

from __future__ import annotations

import json
import sys

import yaml
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig  # type: ignore[import-not-found,unused-ignore]
from ray.serve.schema import ServeDeploySchema  # type: ignore[import-not-found,unused-ignore]

(application,) = ServeDeploySchema.model_validate(yaml.safe_load(json.loads(sys.argv[1]))).applications
builder = application.import_path.rpartition(":")[2]
# The builders' own records import vLLM; each holds the model's, and nothing else of ours.
((key, held),) = application.args.items()
(config,) = [held] if key == "llm_config" else held
read = LLMConfig.model_validate(config)
answer = {
    "name": application.name,
    "builder": builder,
    "model": read.model_loading_config.model_source,
    "engine": read.engine_kwargs,
    "accelerator": read.accelerator_type,
    "replicas": read.deployment_config["num_replicas"],
    "environment": (read.runtime_env or {}).get("env_vars", {}),
}
print("ANSWER" + json.dumps(answer))
