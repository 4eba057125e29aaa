"""The REST service on a real socket, in a thread of the test process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from app.main import create_app
from app.settings import Settings
from app.solving import Solver


@contextmanager
def running_service(settings: Settings, solver: Solver | None) -> Iterator[httpx.Client]:
    """A client of a service that runs until the block ends."""
    config = uvicorn.Config(create_app(settings, solver), port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
