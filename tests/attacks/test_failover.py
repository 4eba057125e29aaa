"""PostgreSQL fails over to its replica under load: nobody gets a 500, and every job that was accepted is finished."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from meshwright.app.service.engine import migrate_queue
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import upgrade
from tests.attacks.served import served
from tests.crash.databases import postgresql_pair, postgresql_programs
from tests.support.requests_given import training

JOBS_BEFORE, JOBS_AFTER, WITHIN_S = 5, 5, 180.0

pytestmark = pytest.mark.skipif(
    postgresql_programs() is None, reason="needs PostgreSQL's programs, and root to become another user"
)


@pytest.mark.slow
def test_a_fail_over_loses_no_accepted_job_and_answers_no_500(tmp_path: Path) -> None:
    statuses: Counter[int] = Counter()
    accepted: list[str] = []
    over = threading.Event()
    with postgresql_pair() as pair:
        engine = open_engine(pair.url)
        upgrade(engine)
        engine.dispose()
        migrate_queue(pair.url)
        worker = subprocess.Popen(
            [sys.executable, "-c", "from tests.crash.worker import main; main()", pair.url, "2", "3"],
            cwd=Path(__file__).parents[2],
        )
        try:
            with served(pair.url, tmp_path) as service, httpx.Client(base_url=service.url, timeout=60) as client:

                def ask() -> None:
                    seed = 0
                    while not over.is_set():
                        answer = client.post("/v1/plans", json=training(search={"seed": seed}))
                        statuses[answer.status_code] += 1
                        if answer.status_code == 202:
                            accepted.append(answer.headers["location"])
                        seed += 1
                        over.wait(0.2)

                asker = threading.Thread(target=ask, daemon=True)
                asker.start()
                _wait(lambda: len(accepted) >= JOBS_BEFORE)
                pair.fail_over()
                before = len(accepted)
                _wait(lambda: len(accepted) >= before + JOBS_AFTER)
                over.set()
                asker.join(60)
                assert set(statuses) <= {200, 202, 503}
                _wait(lambda: all(_status(client, job) in ("succeeded", "gone") for job in accepted))
                assert all(_status(client, job) == "succeeded" for job in accepted)
                assert client.get("/readyz").status_code == 200
        finally:
            worker.terminate()
            worker.wait(60)


def _status(client: httpx.Client, job: str) -> str:
    answer = client.get(job)
    return "gone" if answer.status_code == 404 else str(answer.json().get("status", ""))


def _wait(is_so: object) -> None:
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        if is_so():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError("it did not come to that in time")
