"""Ask KServe's own records about the objects of a manifest; prints their kinds, and the broken fields that they refuse.

The records are made of KServe's API. Those of Kubernetes, which they hold, are its client's.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from typing import Any

import kubernetes.client.models as kubernetes_records  # type: ignore[import-not-found,import-untyped,unused-ignore]
import yaml
from bare import bare  # type: ignore[import-not-found,unused-ignore]

bare("kserve")
kserve_records = importlib.import_module("kserve.models")

PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "object": (object,), "float": (int, float)}
RECORDS = {"ConfigMap": "V1ConfigMap", "InferenceService": "V1beta1InferenceService"}


class RefusedError(Exception):
    """A field that a record has not, or a value that it does not take."""


def read(value: Any, kind: str, path: str) -> Any:
    """The value as the record of a kind; raises RefusedError."""
    if listed := re.fullmatch(r"[lL]ist\[(.+)\]", kind):
        return [read(each, listed[1], f"{path}[{place}]") for place, each in enumerate(value)]
    if mapped := re.fullmatch(r"[dD]ict[(\[]str, (.+)[)\]]", kind):
        # Amounts may be numbers in a manifest, where the client's record has texts.
        if mapped[1] == "str":
            return {key: str(each) for key, each in value.items()}
        return {key: read(each, mapped[1], f"{path}.{key}") for key, each in value.items()}
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise RefusedError(path)
        return value
    record = getattr(kserve_records, kind, None) or getattr(kubernetes_records, kind, None)
    if record is None:
        return value
    names = {written: name for name, written in record.attribute_map.items()}
    if unknown := sorted(set(value) - set(names)):
        raise RefusedError(".".join(filter(None, (path, unknown[0]))))
    below = {}
    for key, each in value.items():
        below[names[key]] = read(each, record.openapi_types[names[key]], ".".join(filter(None, (path, key))))
    return record(**below)


def refused(document: Any) -> str:
    try:
        read(document, RECORDS[document["kind"]], "")
    except RefusedError as error:
        return str(error)
    raise AssertionError("a broken manifest is taken")


kinds = []
for described in yaml.safe_load_all(json.loads(sys.argv[1])):
    read(described, RECORDS[described["kind"]], "")
    kinds.append(described["kind"])
unknown, mistyped = copy.deepcopy(described), copy.deepcopy(described)
unknown["spec"]["predictor"]["containers"][0]["gpus"] = 4
mistyped["spec"]["predictor"]["minReplicas"] = "four"
print("ANSWER" + json.dumps({"kinds": kinds, "refused": [refused(unknown), refused(mistyped)]}))
