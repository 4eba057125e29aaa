"""The digest of a request: sha256 over the RFC 8785 form of everything that the plan depends on.

Two requests that ask the same of the same version of the solver and the cost models, under the same calibration, have
one digest however they were written: defaults are filled in, references resolved, keys sorted, numbers normalised.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Protocol

import rfc8785

from meshwright.app.base.documents import compact_json, object_text
from meshwright.app.requests.plan_documents import join_texts, plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.version import COST_MODEL_VERSION
from meshwright.solver.answer.plan import PLAN_SCHEMA, Plan
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.version import SOLVER_VERSION

DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")
SHORT_DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{8,64}")
"""A digest, or the start of one, as a person types it: at least 8 hexadecimal digits."""

REMEMBERED, SHORT_LENGTH, LONGEST_REMEMBERED = 256, 400, 65_536
"""Fields whose canonical form a process remembers, and how long their texts are: 32 MiB at the very most."""


def field_texts(document: dict[str, Any]) -> dict[str, str]:
    """JSON texts of a document's fields, by name."""
    return {name: compact_json(value) for name, value in document.items()}


def digest_of_texts(texts: dict[str, str]) -> str:
    """Return ``sha256:<hex>`` of a resolved request document, from the JSON texts of its fields.

    Raises WorkloadError when a number has no exact canonical form.
    """
    try:
        keyed = {
            "plan_schema": rfc8785.dumps(PLAN_SCHEMA),
            "solver_version": rfc8785.dumps(SOLVER_VERSION),
            "cost_model_version": rfc8785.dumps(COST_MODEL_VERSION),
            "calibration": rfc8785.dumps(calibration_digest()),
            "request": _canonical_object({name: _canonical(text) for name, text in texts.items()}),
        }
    except rfc8785.CanonicalizationError as error:
        raise WorkloadError(f"the request has no canonical form: {error}", allowed="whole numbers below 2^53") from None
    return f"sha256:{hashlib.sha256(_canonical_object(keyed)).hexdigest()}"


def _canonical_object(fields: dict[str, bytes]) -> bytes:
    """Canonical form of an object whose values are in theirs; names are ASCII, so they sort as RFC 8785, 3.2.3 says."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode("ascii"), fields[name]) for name in sorted(fields)) + b"}"


def _canonical(text: str) -> bytes:
    """Canonical form of a field. Models and clusters are large and come again and again, in requests that differ elsewhere."""
    is_worth_it = SHORT_LENGTH < len(text) <= LONGEST_REMEMBERED
    return _remembered_form(text) if is_worth_it else _canonical_form(text)


def _canonical_form(text: str) -> bytes:
    canonical: bytes = rfc8785.dumps(json.loads(text))
    return canonical


_remembered_form = lru_cache(maxsize=REMEMBERED)(_canonical_form)


@cache
def calibration_digest() -> str:
    """``sha256:<hex>`` over the paths and bytes of every calibration file that this version ships."""
    whole = hashlib.sha256()
    for path, content in sorted(calibration_files().items()):
        # Each path and content is hashed by itself, so that moving bytes between files changes the whole.
        whole.update(hashlib.sha256(path.encode()).digest())
        whole.update(hashlib.sha256(content).digest())
    return f"sha256:{whole.hexdigest()}"


@cache
def calibration_files() -> dict[str, bytes]:
    """The bytes of every calibration file that this version ships, by path: "kernels/h100_sxm.json"."""
    return dict(_files_under(files("meshwright.costmodels.hardware").joinpath("calibrations"), ""))


def _files_under(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files_under(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".json"):
            yield prefix + entry.name, entry.read_bytes()


# Requests with their digest, and the texts of plans that answer them. Nothing here needs a database.


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with its digest and the JSON text it is stored as."""

    request: PlanRequest
    digest: str
    text: str

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.request.model.name


class RequestKey(Protocol):
    """The parts of a request that are kept while its plan is made: its digest, its text, and the name of its model."""

    @property
    def digest(self) -> str:
        """The digest."""
        ...

    @property
    def text(self) -> str:
        """The JSON text that it is stored as."""
        ...

    @property
    def model(self) -> str:
        """The name of its model."""
        ...


def keyed_request(request: PlanRequest) -> KeyedRequest:
    """The request with its key."""
    texts = field_texts(request_document(request))
    return KeyedRequest(request, digest_of_texts(texts), object_text(texts))


def plan_text(plan: Plan, key: KeyedRequest) -> str:
    """JSON text of the document of a plan that is not stored."""
    return join_texts(compact_json(plan_document(replace(plan, digest=key.digest))), key.text)
