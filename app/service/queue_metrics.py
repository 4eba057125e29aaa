"""Prometheus metrics of the queue, and the address that all metrics of a process are scraped at."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine

from meshwright.app.base.digits import is_digits
from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import SettingError
from meshwright.app.edge.observability import registry
from meshwright.app.service.desk import WORKER_ALIVE_S, JobDesk

log = logging.getLogger(__name__)


class QueueCollector(Collector):
    """The queue of all processes over one database, read when it is scraped; nothing while the database does not answer."""

    def __init__(self, engine: Engine):
        self._desk = JobDesk(engine)

    def collect(self) -> Iterable[Metric]:
        """The figures now."""
        try:
            state = self._desk.state(worker_alive_s=WORKER_ALIVE_S)
        except StoreError as error:
            log.warning("no figures of the queue: %s", error)
            return
        yield GaugeMetricFamily("meshwright_jobs_queued", "Jobs that wait.", value=state.queued)
        yield GaugeMetricFamily("meshwright_jobs_running", "Jobs that are being solved.", value=state.running)
        yield GaugeMetricFamily("meshwright_queue_age_seconds", "How long the oldest job waits.", value=state.oldest_s)
        yield GaugeMetricFamily("meshwright_workers_alive", "Workers that gave a sign of life lately.", value=state.workers)


@dataclass(frozen=True, slots=True)
class Address:
    """Where metrics are scraped."""

    host: str
    port: int


def read_address(text: str) -> Address:
    """HOST:PORT; raises SettingError for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not is_digits(port) or not 0 <= int(port) <= 65535:
        raise SettingError("environment variable MESHWRIGHT_METRICS_ADDRESS can't be used", given=text, allowed="HOST:PORT")
    return Address(host.strip("[]"), int(port))


def serve_metrics(text: str, engine: Engine) -> int | None:
    """Let this process's metrics and the queue's be scraped at an address; the port that it took, None for no address.

    Raises SettingError for an address that is none or is taken.
    """
    if not text:
        return None
    address = read_address(text)
    registry.register(QueueCollector(engine))
    try:
        server, _ = start_http_server(address.port, address.host, registry)
    except OSError as error:
        remedy = "set another MESHWRIGHT_METRICS_ADDRESS"
        raise SettingError(f"metrics can't be served: {error.strerror}", given=text, remedy=remedy) from None
    return int(server.server_port)
