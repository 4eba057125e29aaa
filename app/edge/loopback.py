"""Names of this machine that no other machine has: addresses that a service may listen on, and be called by, without keys."""

from __future__ import annotations

import ipaddress
import re

_PORT = re.compile(r":[0-9]*\Z")


def is_loopback(host: str) -> bool:
    """Return True if a service that listens there can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Of names, only this one is bound to loopback addresses by standard (RFC 6761, 6.3).
        return host == "localhost"


def is_called_by_loopback(header: str | None) -> bool:
    """Return True if a Host header names this machine by what only a caller on it would write (RFC 9110, 7.2).

    A browser sends the name that its page's address has. A page of a stranger whose name has come to mean 127.0.0.1 (DNS
    rebinding) is told by it.
    """
    host = _PORT.sub("", (header or "").strip().lower())
    return is_loopback(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
