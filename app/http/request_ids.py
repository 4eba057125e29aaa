"""The id of an HTTP request: the middleware notes it in the request's scope, and whoever answers reads it there."""

from __future__ import annotations

from starlette.types import Scope

_KEY = "meshwright.request_id"


def note_request_id(scope: Scope, request_id: str) -> None:
    """Write the id of a request into its scope."""
    scope[_KEY] = request_id


def request_id_of(scope: Scope) -> str:
    """Return the id of a request; "-" if it came past the middleware."""
    found: str = scope.get(_KEY, "-")
    return found
