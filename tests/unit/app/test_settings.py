"""Settings from the environment, and the log lines that follow them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from meshwright.app.base.logs import JsonFormatter, TextFormatter, logging_for, start_logging
from meshwright.app.base.settings import Auth, LogFormat, LogLevel, SettingError, Settings, default_database_path, read_settings
from meshwright.costmodels.units import MIB


def test_defaults() -> None:
    settings = read_settings({"XDG_DATA_HOME": "/data"})
    assert settings == Settings("sqlite:////data/meshwright/plans.db")
    assert settings.max_body_bytes == 8 * MIB


@pytest.mark.parametrize("data_home", ["", "relative/path"])
def test_a_data_folder_that_is_not_absolute_is_not_used(data_home: str) -> None:
    expected = Path.home() / ".local" / "share" / "meshwright" / "plans.db"
    assert default_database_path({"XDG_DATA_HOME": data_home}) == expected


def test_every_variable_sets_its_setting() -> None:
    settings = read_settings(
        {
            "MESHWRIGHT_DATABASE_URL": "sqlite:///x.db",
            "MESHWRIGHT_MAX_BODY_BYTES": "10",
            "MESHWRIGHT_MAX_SOLVES": "3",
            "MESHWRIGHT_MAX_SOLVE_MEMORY_BYTES": "4",
            "MESHWRIGHT_MAX_WAITING_JOBS": "5",
            "MESHWRIGHT_MAX_STORED_BYTES": "32",
            "MESHWRIGHT_MAX_TIME_LIMIT_S": "6",
            "MESHWRIGHT_MAX_QUEUE_AGE_S": "7",
            "MESHWRIGHT_TAKEOVER_AFTER_S": "8",
            "MESHWRIGHT_TENANT_WEIGHTS": "acme=3, nightly=2",
            "MESHWRIGHT_DRAIN_S": "9",
            "MESHWRIGHT_KEEP_JOBS_DAYS": "30",
            "MESHWRIGHT_KEEP_AUDIT_DAYS": "31",
            "MESHWRIGHT_LOG_LEVEL": "DEBUG",
            "MESHWRIGHT_LOG_FORMAT": "json",
            "MESHWRIGHT_AUTH": "off",
            "MESHWRIGHT_MAX_REQUESTS_PER_S": "10",
            "MESHWRIGHT_MAX_FAILED_AUTHS_PER_S": "11",
            "MESHWRIGHT_MAX_CONNECTIONS_PER_PEER": "12",
            "MESHWRIGHT_TRUSTED_PROXIES": "10.0.0.1, ::1",
            "MESHWRIGHT_OIDC_ISSUER": "https://issuer.example",
            "MESHWRIGHT_OIDC_AUDIENCE": "plans",
            "MESHWRIGHT_OIDC_TENANT_CLAIM": "org",
            "MESHWRIGHT_WEBHOOK_HOSTS": "hooks.example",
            "MESHWRIGHT_WEBHOOK_SECRET": "s3cret",
            "MESHWRIGHT_METRICS_ADDRESS": "127.0.0.1:9464",
            "MESHWRIGHT_OTLP_ENDPOINT": "http://127.0.0.1:4318/v1/traces",
        }
    )
    assert settings == Settings(
        "sqlite:///x.db",
        10,
        3,
        4,
        5,
        32,
        6,
        7,
        8,
        (("acme", 3), ("nightly", 2)),
        9,
        30,
        31,
        LogLevel.DEBUG,
        LogFormat.JSON,
        Auth.OFF,
        10,
        11,
        12,
        "10.0.0.1 ::1",
        "https://issuer.example",
        "plans",
        "org",
        "127.0.0.1:9464",
        "http://127.0.0.1:4318/v1/traces",
        "hooks.example",
        "s3cret",
    )


@pytest.mark.parametrize("text", ["acme", "acme=0", "acme=1.5", "=3", "acme=2 acme=3", "acme=101", "acme=\u0663"])
def test_weights_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="TENANT=WEIGHT"):
        read_settings({"MESHWRIGHT_TENANT_WEIGHTS": text})


def test_a_proxy_is_an_address() -> None:
    with pytest.raises(SettingError, match="IP addresses"):
        read_settings({"MESHWRIGHT_TRUSTED_PROXIES": "proxy.example"})


@pytest.mark.parametrize("issuer", ["http://issuer.example", "issuer.example", "file:///keys"])
def test_an_issuer_is_asked_over_an_encrypted_line(issuer: str) -> None:
    with pytest.raises(SettingError, match="https"):
        read_settings({"MESHWRIGHT_OIDC_ISSUER": issuer})


@pytest.mark.parametrize("value", ["0", "-1", "", "many", "1e3", "٣", "9" * 30])
def test_numbers_that_are_none(value: str) -> None:
    with pytest.raises(SettingError, match="MESHWRIGHT_MAX_SOLVES"):
        read_settings({"MESHWRIGHT_MAX_SOLVES": value})


def test_choices_that_are_none() -> None:
    with pytest.raises(SettingError, match="text, json"):
        read_settings({"MESHWRIGHT_LOG_FORMAT": "xml"})


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "name": "app.x", "levelname": "INFO", "levelno": logging.INFO})
    made.__dict__.update(fields)
    return made


def test_text_lines_have_their_fields_and_stay_one_line() -> None:
    line = TextFormatter().format(record("solved\nforged line", digest="sha256:1"))
    assert line.endswith("info app.x solved\\nforged line digest=sha256:1")
    assert "\n" not in line


def test_json_lines_have_their_fields_and_request() -> None:
    with logging_for("r-1"):
        line = json.loads(JsonFormatter().format(record("solved", digest="sha256:1")))
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "info", "logger": "app.x", "message": "solved", "digest": "sha256:1", "request_id": "r-1"}


def test_log_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        start_logging(LogLevel.INFO, LogFormat.TEXT)
        logging.getLogger("app.x").info("hello", extra={"n": 1})
        logging.getLogger("app.x").debug("unheard")
    finally:
        root.handlers, root.level = handlers, level
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("info app.x hello n=1\n")
    assert "unheard" not in err
