"""The operations of the durable queue that the service needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection


class JobQueue(Protocol):
    """Where jobs wait for a worker."""

    def enqueue(self, connection: Connection, *, workflow: str, job_id: str, urgency: int) -> None:
        """Queue a job in the caller's transaction."""
        ...

    def cancel(self, workflows: Sequence[str]) -> None:
        """Take workflows out of the queue."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
