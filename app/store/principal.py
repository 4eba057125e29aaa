"""Who asks: the tenant whose rows a request sees, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshwright.app.base.errors import ForbiddenError
from meshwright.app.store.tables import DEFAULT_TENANT


class Scope(StrEnum):
    """A right of a caller."""

    PLANS_READ = "plans:read"
    PLANS_WRITE = "plans:write"
    CALIBRATIONS_WRITE = "calibrations:write"
    CLUSTERS_WRITE = "clusters:write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    tenant   whose rows it sees and writes
    name     who it is in the log: ``key:<prefix>``, ``oidc:<subject>`` or ``local``
    scopes   what it may do; ``admin`` holds all others
    """

    tenant: str
    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Return True if this caller holds a scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def demand(self, scope: Scope) -> None:
        """Raise ForbiddenError unless this caller holds a scope."""
        if not self.may(scope):
            raise ForbiddenError(
                "the caller may not do this",
                given=", ".join(sorted(self.scopes)) or "no scope",
                allowed=scope.value,
                remedy="use a key or token with this scope",
            )


LOCAL = Principal(DEFAULT_TENANT, "local", frozenset({Scope.ADMIN}))
"""The caller of a service without authentication: whoever reaches its loopback address."""
