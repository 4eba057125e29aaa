"""Settings of the command line and the service: the only place that reads environment variables.

Every variable starts with ``MESHWRIGHT_`` and is described in ``docs/cli.md``.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from meshwright.app.base.digits import is_digits
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import MIB

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps the current folder out of the places that Python imports from: what lies there is a stranger's."""


MAX_WEIGHT = 100
GIB = 2**30


class LogFormat(StrEnum):
    """The form of log lines: for a person, or one JSON object a line."""

    TEXT = "text"
    JSON = "json"


class Auth(StrEnum):
    """The authentication of callers: asked for, or off."""

    REQUIRED = "required"
    OFF = "off"


class LogLevel(StrEnum):
    """Least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Choice = TypeVar("Choice", Auth, LogFormat, LogLevel)


class SettingError(InvalidInputError):
    """An environment variable that can't be used."""


@dataclass(frozen=True)
class Settings:
    """The settings that can be set from outside.

    database_url        SQLAlchemy URL of the plan store: SQLite or PostgreSQL
    max_body_bytes      longest request body the service reads
    max_solves          solves a worker runs at once, each in a process of its own; the same for all workers of a queue
    max_solve_memory_bytes  memory of its own that a solve may use
    max_waiting_jobs    jobs of one tenant that may wait for their turn; more are refused with 429
    max_stored_bytes    documents that one tenant may have stored, all together; more are refused with 507
    max_time_limit_s    longest ``search.time_limit_s`` the service accepts
    max_queue_age_s     longest that a job may have waited before `/readyz` says that the queue is late
    takeover_after_s    how long a running job gives no sign of life before another worker takes it
    tenant_weights      how many tenants each of these counts as when workers take turns; of others 1
    drain_s             time that running jobs have to finish when a worker is told to stop
    keep_jobs_days      days for which finished jobs, re-plans and idempotency keys are kept
    keep_audit_days     days for which entries of the audit log are
    log_level, log_format   of the lines on stderr
    auth                whether callers must show an API key or token; off only on a loopback address
    max_requests_per_s  of one caller in the long run; twice as many at once
    max_failed_auths_per_s  of one address
    max_connections_per_peer   open at once of one address
    trusted_proxies     addresses of proxies, separated by spaces: their X-Forwarded-For is believed, and they may have any
                        number of connections
    oidc_issuer, oidc_audience   whose tokens the service takes beside API keys, made out to whom; empty for none
    oidc_tenant_claim   claim of a token that names the tenant
    metrics_address     HOST:PORT at which this process's metrics can be scraped; empty for none
    otlp_endpoint       URL that spans are sent to (OTLP over HTTP); empty for none
    webhook_hosts       hosts that may be told of finished re-plans, separated by commas; empty for none
    webhook_secret      what those calls are signed with; empty for no calls
    api_key             what commands that ask a service show it; empty for a service that asks for none
    """

    database_url: str
    max_body_bytes: int = 8 * MIB
    max_solves: int = 2
    max_solve_memory_bytes: int = 8 * GIB
    max_waiting_jobs: int = 2000
    # Some sixty thousand plans of 64 KiB (`app.store.plans`).
    max_stored_bytes: int = 4 * GIB
    max_time_limit_s: int = 600
    max_queue_age_s: int = 3600
    takeover_after_s: int = 15
    tenant_weights: tuple[tuple[str, int], ...] = ()
    drain_s: int = 30
    keep_jobs_days: int = 90
    keep_audit_days: int = 400
    log_level: LogLevel = LogLevel.WARNING
    log_format: LogFormat = LogFormat.TEXT
    auth: Auth = Auth.REQUIRED
    max_requests_per_s: int = 1000
    max_failed_auths_per_s: int = 5
    max_connections_per_peer: int = 512
    trusted_proxies: str = ""
    oidc_issuer: str = ""
    oidc_audience: str = "meshwright"
    oidc_tenant_claim: str = "tenant"
    metrics_address: str = ""
    otlp_endpoint: str = ""
    webhook_hosts: str = ""
    webhook_secret: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)


VARIABLES = {
    "MESHWRIGHT_DATABASE_URL": "database_url",
    "MESHWRIGHT_MAX_BODY_BYTES": "max_body_bytes",
    "MESHWRIGHT_MAX_SOLVES": "max_solves",
    "MESHWRIGHT_MAX_SOLVE_MEMORY_BYTES": "max_solve_memory_bytes",
    "MESHWRIGHT_MAX_WAITING_JOBS": "max_waiting_jobs",
    "MESHWRIGHT_MAX_STORED_BYTES": "max_stored_bytes",
    "MESHWRIGHT_MAX_TIME_LIMIT_S": "max_time_limit_s",
    "MESHWRIGHT_MAX_QUEUE_AGE_S": "max_queue_age_s",
    "MESHWRIGHT_TAKEOVER_AFTER_S": "takeover_after_s",
    "MESHWRIGHT_TENANT_WEIGHTS": "tenant_weights",
    "MESHWRIGHT_DRAIN_S": "drain_s",
    "MESHWRIGHT_KEEP_JOBS_DAYS": "keep_jobs_days",
    "MESHWRIGHT_KEEP_AUDIT_DAYS": "keep_audit_days",
    "MESHWRIGHT_LOG_LEVEL": "log_level",
    "MESHWRIGHT_LOG_FORMAT": "log_format",
    "MESHWRIGHT_AUTH": "auth",
    "MESHWRIGHT_MAX_REQUESTS_PER_S": "max_requests_per_s",
    "MESHWRIGHT_MAX_FAILED_AUTHS_PER_S": "max_failed_auths_per_s",
    "MESHWRIGHT_MAX_CONNECTIONS_PER_PEER": "max_connections_per_peer",
    "MESHWRIGHT_TRUSTED_PROXIES": "trusted_proxies",
    "MESHWRIGHT_OIDC_ISSUER": "oidc_issuer",
    "MESHWRIGHT_OIDC_AUDIENCE": "oidc_audience",
    "MESHWRIGHT_OIDC_TENANT_CLAIM": "oidc_tenant_claim",
    "MESHWRIGHT_METRICS_ADDRESS": "metrics_address",
    "MESHWRIGHT_OTLP_ENDPOINT": "otlp_endpoint",
    "MESHWRIGHT_WEBHOOK_HOSTS": "webhook_hosts",
    "MESHWRIGHT_WEBHOOK_SECRET": "webhook_secret",
    "MESHWRIGHT_API_KEY": "api_key",
}
"""Setting that each environment variable sets."""


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from environment variables (those of the process unless given); raises SettingError on a bad one."""
    values = os.environ if environment is None else environment
    return Settings(
        database_url=values.get("MESHWRIGHT_DATABASE_URL") or f"sqlite:///{default_database_path(values)}",
        **{name: _positive_int(values, variable, getattr(Settings, name)) for variable, name in _whole_numbers()},
        tenant_weights=_weights(values, "MESHWRIGHT_TENANT_WEIGHTS"),
        log_level=_choice(values, "MESHWRIGHT_LOG_LEVEL", Settings.log_level),
        log_format=_choice(values, "MESHWRIGHT_LOG_FORMAT", Settings.log_format),
        auth=_choice(values, "MESHWRIGHT_AUTH", Settings.auth),
        trusted_proxies=_addresses(values, "MESHWRIGHT_TRUSTED_PROXIES"),
        oidc_issuer=_issuer(values),
        oidc_audience=values.get("MESHWRIGHT_OIDC_AUDIENCE") or Settings.oidc_audience,
        oidc_tenant_claim=values.get("MESHWRIGHT_OIDC_TENANT_CLAIM") or Settings.oidc_tenant_claim,
        metrics_address=values.get("MESHWRIGHT_METRICS_ADDRESS", ""),
        otlp_endpoint=_endpoint(values),
        webhook_hosts=values.get("MESHWRIGHT_WEBHOOK_HOSTS", ""),
        webhook_secret=values.get("MESHWRIGHT_WEBHOOK_SECRET", ""),
        api_key=_api_key(values),
    )


def _whole_numbers() -> list[tuple[str, str]]:
    """Variables and settings that are whole numbers from 1."""
    return [(variable, name) for variable, name in VARIABLES.items() if isinstance(getattr(Settings, name, None), int)]


def default_database_path(environment: Mapping[str, str]) -> Path:
    """``meshwright/plans.db`` in the user's data folder (XDG base directory specification)."""
    data_home = Path(environment.get("XDG_DATA_HOME", ""))
    # The specification: a relative path in XDG_DATA_HOME is invalid and is ignored.
    folder = data_home if data_home.is_absolute() else Path.home() / ".local" / "share"
    return folder / "meshwright" / "plans.db"


def _issuer(values: Mapping[str, str]) -> str:
    issuer = values.get("MESHWRIGHT_OIDC_ISSUER", "")
    # Keys that come unencrypted could be anybody's.
    if issuer and not issuer.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        allowed = "https://ISSUER, as its tokens name it"
        raise SettingError("environment variable MESHWRIGHT_OIDC_ISSUER can't be used", given=issuer, allowed=allowed)
    return issuer


def _addresses(values: Mapping[str, str], name: str) -> str:
    text = " ".join(values.get(name, "").replace(",", " ").split())
    for address in text.split():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            allowed = "IP addresses, separated by spaces"
            raise SettingError(f"environment variable {name} can't be used", given=address, allowed=allowed) from None
    return text


def _weights(values: Mapping[str, str], name: str) -> tuple[tuple[str, int], ...]:
    """Return the weights of a text as ``acme=3 nightly=2``."""
    weights: dict[str, int] = {}
    for entry in values.get(name, "").replace(",", " ").split():
        tenant, _, text = entry.rpartition("=")
        number = int(text) if is_digits(text, most=4) else 0
        if not tenant or tenant in weights or not 1 <= number <= MAX_WEIGHT:
            allowed = f"TENANT=WEIGHT, separated by spaces, each tenant once, weights whole numbers from 1 to {MAX_WEIGHT}"
            raise SettingError(f"environment variable {name} can't be used", given=entry, allowed=allowed)
        weights[tenant] = number
    return tuple(weights.items())


def _endpoint(values: Mapping[str, str]) -> str:
    endpoint = values.get("MESHWRIGHT_OTLP_ENDPOINT", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        allowed = "http://HOST:4318/v1/traces or https://..."
        raise SettingError("environment variable MESHWRIGHT_OTLP_ENDPOINT can't be used", given=endpoint, allowed=allowed)
    return endpoint


def _api_key(values: Mapping[str, str]) -> str:
    key = values.get("MESHWRIGHT_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        # The key is not shown: logs keep what errors say.
        raise SettingError("environment variable MESHWRIGHT_API_KEY can't be used", allowed="printable ASCII characters")
    return key


def _positive_int(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    number = int(text) if is_digits(text, most=12) else 0
    if number == 0:
        raise SettingError(f"environment variable {name} can't be used", given=text, allowed="a whole number from 1")
    return number


def _choice(values: Mapping[str, str], name: str, default: Choice) -> Choice:
    text = values.get(name, default.value)
    try:
        return type(default)(text.lower())
    except ValueError:
        allowed = ", ".join(type(default))
        raise SettingError(f"environment variable {name} can't be used", given=text, allowed=allowed) from None
