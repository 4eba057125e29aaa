"""The files, settings and commands that the deployment files name exist in the code."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric
from typer.main import get_command

from meshwright.app.base import errors
from meshwright.app.base.settings import VARIABLES, Settings, read_settings
from meshwright.app.cli.main import cli
from meshwright.app.edge.bodies import IDLE_BODY_S, SLOWEST_BODY_BYTES_PER_S
from meshwright.app.edge.connection import HEAD_S, MAX_HEAD_BYTES
from meshwright.app.edge.observability import registry
from meshwright.app.service.queue_metrics import QueueCollector
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import ensure_ready
from meshwright.app.web.main import create_app
from meshwright.costmodels.errors import PlanRejectedError

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
KUBERNETES = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
OURS = {name: service for name, service in COMPOSE.items() if "build" in service}
METRICS_PATH = "/metrics"
NETWORKS = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
KINDS = ("Deployment", "PodDisruptionBudget", "NetworkPolicy")
OF_OTHERS = {"PGPASSWORD", "NUMBA_CACHE_DIR"}
"""Variables of the PostgreSQL driver and of the compiler of loops."""


def containers() -> Iterator[dict[str, Any]]:
    for document in KUBERNETES:
        yield from document["spec"].get("template", {}).get("spec", {}).get("containers", [])


def commands() -> list[list[str]]:
    return [service["command"] for service in OURS.values()] + [container["command"] for container in containers()]


def environments() -> list[dict[str, str]]:
    return [service["environment"] for service in OURS.values()] + [
        {variable["name"]: variable.get("value", "sqlite:///x.db") for variable in container["env"]}
        for container in containers()
    ]


def addresses(settings: Settings) -> set[str]:
    return {*create_app(settings).openapi()["paths"], METRICS_PATH}


def test_the_services_are_those_that_the_design_names() -> None:
    assert {"migrate", "api", "worker", "postgres", "prometheus", "proxy"} == set(COMPOSE)
    assert [name for name, service in COMPOSE.items() if "profiles" in service] == ["proxy"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_is_one(command: list[str]) -> None:
    program, name, *options = command
    assert program == "meshwright"
    found = get_command(cli).commands[name]  # type: ignore[attr-defined]
    found.make_context(name, options)


@pytest.mark.parametrize("environment", environments())
def test_every_variable_is_a_setting_and_its_value_can_be_used(environment: dict[str, str]) -> None:
    assert set(environment) <= set(VARIABLES) | OF_OTHERS
    read_settings({**environment, "MESHWRIGHT_DATABASE_URL": "sqlite:///x.db"})


def test_every_service_that_others_wait_for_tells_its_health(settings: Settings) -> None:
    for name, service in COMPOSE.items():
        if name != "migrate":
            assert service["healthcheck"]["test"][0] == "CMD"
        for awaited, condition in service.get("depends_on", {}).items():
            ends = condition["condition"] == "service_completed_successfully"
            assert ends == (awaited == "migrate")
    for name, port in (("api", 8000), ("worker", 9464)):
        text = " ".join(COMPOSE[name]["healthcheck"]["test"])
        url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", text)
        assert url is not None
        assert int(url[1]) == port
        assert url[2] in addresses(settings)


def test_probes_ask_what_there_is(settings: Settings) -> None:
    for container in containers():
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["path"] in addresses(settings)
                assert container[probe]["httpGet"]["port"] in ports


def test_prometheus_scrapes_the_services_where_they_serve_metrics() -> None:
    port = COMPOSE["api"]["environment"]["MESHWRIGHT_METRICS_ADDRESS"].rpartition(":")[2]
    scraped = set()
    for job in PROMETHEUS["scrape_configs"]:
        for static in job.get("static_configs", []):
            scraped |= set(static["targets"])
        for names in job.get("dns_sd_configs", []):
            scraped |= {f"{name}:{names['port']}" for name in names["names"]}
    assert scraped == {f"{name}:{port}" for name in ("api", "worker")}
    mounted = {Path(inside).name: ROOT / there for there, inside, _ in map(of_mount, COMPOSE["prometheus"]["volumes"][:2])}
    assert mounted["prometheus.yml"].resolve() == ROOT / "deploy" / "prometheus.yml"
    assert {name: mounted[name].resolve() for name in PROMETHEUS["rule_files"]} == {
        "alerts.yml": ROOT / "deploy" / "alerts.yml"
    }


def of_mount(volume: str) -> tuple[str, str, str]:
    there, inside, mode = volume.split(":")
    return there, inside, mode


ALERTS = [rule for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((ROOT / "deploy" / "grafana.json").read_text())["panels"]
QUERIES = [rule["expr"] for rule in ALERTS] + [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("query", QUERIES)
def test_alerts_and_panels_ask_for_metrics_and_labels_that_there_are(settings: Settings, query: str) -> None:
    promql = pytest.importorskip("promql_parser")
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    families = [*registry.collect(), *QueueCollector(engine).collect()]
    engine.dispose()
    labels = {name: family_labels(family) for family in families for name in names_of(family)} | {"up": {"job", "instance"}}
    asked = list(selectors(promql.parse(query)))
    assert asked
    raised = {name.removesuffix("Error") for name in (*vars(errors), PlanRejectedError.__name__)}
    for selector in asked:
        matchers = selector.matchers.matchers
        assert {matcher.name for matcher in matchers} <= labels[selector.name]
        assert all(reason in raised for each in matchers if each.name == "reason" for reason in each.value.split("|"))


def names_of(family: Metric) -> list[str]:
    """The names of a family's series, as a scrape has them."""
    return {
        "counter": [f"{family.name}_total"],
        "histogram": [f"{family.name}_bucket", f"{family.name}_sum", f"{family.name}_count"],
        "gauge": [family.name],
    }[family.type]


def family_labels(family: Metric) -> set[str]:
    """The labels of a family, which the registry knows before it has a series."""
    known = registry._names_to_collectors.get(family.name)
    return set(getattr(known, "_labelnames", ())) | {"le"}


def selectors(expression: object) -> Iterator[Any]:
    """The selectors of series in an expression."""
    if type(expression).__name__ == "VectorSelector":
        yield expression
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if getattr(expression, part, None) is not None:
            yield from selectors(getattr(expression, part))
    for argument in getattr(expression, "args", None) or ():
        yield from selectors(argument)


def test_panels_lie_beside_each_other() -> None:
    cells = [
        (place["x"] + right, place["y"] + down)
        for place in (panel["gridPos"] for panel in PANELS)
        for right in range(place["w"])
        for down in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert {column for column, _ in cells} == set(range(24))


def test_every_alert_says_what_to_do() -> None:
    for rule in ALERTS:
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_workers_have_longer_to_stop_than_their_solves_to_finish() -> None:
    drain_s = Settings("").drain_s
    assert int(COMPOSE["worker"]["stop_grace_period"].removesuffix("s")) > drain_s
    worker = next(document for document in KUBERNETES if document["metadata"]["name"] == "meshwright-worker")
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > drain_s


def test_the_image_holds_every_folder_that_is_installed() -> None:
    copied = set(re.findall(r"^COPY (\S+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    linked = {str(path.resolve().relative_to(ROOT)) for path in (ROOT / "meshwright").iterdir() if path.is_symlink()}
    assert copied == {"meshwright"} | linked


def test_the_actions_of_others_are_named_by_their_commits() -> None:
    for name in ("action.yml", "examples/ci/.github/workflows/plans.yml"):
        used = [one for one in re.findall(r"uses: (\S+)", (ROOT / name).read_text()) if not one.startswith("meshwright/")]
        assert used and all(re.fullmatch(r"[\w-]+(/[\w-]+)+@[0-9a-f]{40}", one) for one in used)


def test_the_images_of_others_are_named_by_version_and_digest() -> None:
    """A tag may mean another image tomorrow: a release refuses one that is not named by its digest."""
    built_from = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    images = [*built_from, *(service["image"] for name, service in COMPOSE.items() if name not in OURS)]
    assert len(built_from) == 1 and all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in images)


def pods() -> Iterator[dict[str, Any]]:
    for document in KUBERNETES:
        if document["kind"] in {"Deployment", "Job"}:
            yield document["spec"]["template"]["spec"]


def test_pods_may_do_no_more_than_they_need() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])
            assert not container["image"].endswith(":latest")


def test_each_deployment_has_its_budget_and_its_network_policy() -> None:
    names = {kind: {document["metadata"]["name"] for document in KUBERNETES if document["kind"] == kind} for kind in KINDS}
    deployments, budgets, policies = (names[kind] for kind in KINDS)
    assert deployments == budgets == policies


def test_compose_starts_what_ends_again_and_shows_no_password() -> None:
    for name, service in COMPOSE.items():
        assert service["restart"] == ("on-failure" if name == "migrate" else "unless-stopped")
    assert "127.0.0.1" in COMPOSE["postgres"]["healthcheck"]["test"], "its start-up server listens on a socket alone"
    for service in OURS.values():
        assert "PASSWORD" not in service["environment"]["MESHWRIGHT_DATABASE_URL"]


def test_the_proxy_has_the_limits_of_the_service_and_is_the_one_that_is_trusted() -> None:
    text = (ROOT / "deploy" / "Caddyfile").read_text()
    limits = dict(re.findall(r"^\s+(max_header_size|max_size|read_header|read_body) (\w+)$", text, re.MULTILINE))
    slowest_s = IDLE_BODY_S + Settings("").max_body_bytes / SLOWEST_BODY_BYTES_PER_S
    assert limits == {
        "max_header_size": f"{MAX_HEAD_BYTES // 1024}KiB",
        "max_size": f"{Settings('').max_body_bytes // 2**20}MiB",
        "read_header": f"{HEAD_S:g}s",
        "read_body": f"{math.ceil(slowest_s / 10) * 10}s",
    }
    assert "header_up X-Forwarded-For {remote_host}" in text
    address = COMPOSE["proxy"]["networks"]["edge"]["ipv4_address"]
    assert COMPOSE["api"]["environment"]["MESHWRIGHT_TRUSTED_PROXIES"] == address
    assert ipaddress.ip_address(address) in ipaddress.ip_network(NETWORKS["edge"]["ipam"]["config"][0]["subnet"])
    assert "reverse_proxy api:8000" in text
    assert "edge" in COMPOSE["api"]["networks"]


def test_the_lock_of_the_image_has_the_tested_versions_and_hashes_of_all() -> None:
    def versions(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+?)(?:\[\w+\])?==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE))

    def same_name(names: dict[str, str]) -> dict[str, str]:
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in names.items()}

    tested, shipped = same_name(versions("requirements.lock")), same_name(versions("requirements-image.lock"))
    differing = {name: version for name, version in shipped.items() if tested.get(name, version) != version}
    assert differing == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[\[<>=;]", line)[0] for line in project["dependencies"] + project["optional-dependencies"]["postgres"]]
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} <= set(shipped)
    entries = re.split(r"^(?=[a-zA-Z])", (ROOT / "requirements-image.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(shipped) and all("--hash=sha256:" in entry for entry in entries)


def test_the_builder_is_sent_what_the_image_copies() -> None:
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    lines = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert sent == {name for line in lines for name in line.split()}
