"""Shared by the tests of rest and others: Json, problem."""

from __future__ import annotations

from typing import Any

import httpx

Json = dict[str, Any]


def problem(response: httpx.Response, status: int, name: str) -> Json:
    """The problem document of a response, its form checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: Json = response.json()
    assert document["type"] == f"urn:meshwright:problem:{name}"
    assert document["status"] == status
    assert document["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return document
