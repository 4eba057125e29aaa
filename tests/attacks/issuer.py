"""Shared by the tests of issuer and others: forged."""

from __future__ import annotations

from tests.integration.security.oidc import Issuer


def forged() -> str:
    return Issuer().token(kid="unknown")
