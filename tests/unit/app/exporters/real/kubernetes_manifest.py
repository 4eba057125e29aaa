"""Ask Kubernetes' own schemas about the objects of a manifest; prints the kinds that it has."""

from __future__ import annotations

import json
import sys

import kubernetes_validate  # type: ignore[import-not-found,unused-ignore]
import yaml

VERSION = "1.31"
kinds = []
for described in yaml.safe_load_all(json.loads(sys.argv[1])):
    kubernetes_validate.validate(described, VERSION, strict=True)
    kinds.append(described["kind"])
print("ANSWER" + json.dumps(kinds))
