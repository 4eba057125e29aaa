"""Ask SkyPilot about a task; prints what it takes its nodes, devices and servers to be."""

from __future__ import annotations

import json
import os
import sys
import tempfile

# It keeps its state in the home folder.
os.environ["HOME"] = tempfile.mkdtemp()

import yaml
from sky.task import Task  # type: ignore[import-not-found,unused-ignore]

task = Task.from_yaml_config(yaml.safe_load(json.loads(sys.argv[1])))
(resources,) = task.resources
service = task.service
answer = {
    "name": task.name,
    "nodes": task.num_nodes,
    "accelerators": resources.accelerators,
    "ports": resources.ports,
    "run": task.run,
    "servers": None if service is None else service.min_replicas,
    "probe": None if service is None else service.readiness_path,
}
print("ANSWER" + json.dumps(answer))
