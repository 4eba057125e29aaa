"""A check against a running service: its solver plans, its store answers again, and it keeps the history of checks.

What a service is asked and what this machine would do must be the same, or the lock would depend on where it was made:
a service of another version or with other calibrations is refused by the digest of its answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import httpx

from meshwright.app.base.digits import is_digits
from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import ServiceError
from meshwright.app.base.quoting import readable
from meshwright.app.base.records import to_document
from meshwright.app.base.version import installed_version
from meshwright.app.regression.planning import is_reproducible
from meshwright.app.regression.report import CheckReport
from meshwright.app.requests.digests import KeyedRequest
from meshwright.app.requests.plan_documents import read_plan
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError
from meshwright.solver.answer.plan import Plan

CONNECTIONS = 8
"""Requests under way at once: the service queues what it can't plan at once."""
ANSWER_TIMEOUT_S = 60.0
"""Longest silence of a service that is given a request or asked for a job."""
POLL_S = 0.5
"""Time between two looks at a job, unless the service's Retry-After says otherwise."""
MAX_POLL_S = 10.0
OPEN_JOB = frozenset({"queued", "running"})


@dataclass(frozen=True, slots=True)
class ServerPlanner:
    """Plans by a service's REST interface.

    url      of the service, without /v1
    api_key  sent as a bearer token; empty sends none
    sleep    waits between two looks at a job

    Raises InvalidInputError for what is no address.
    """

    url: str
    api_key: str
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL("")
        if address.scheme not in ("http", "https") or not address.host:
            raise InvalidInputError("this is no address of a service", given=self.url, allowed="http://HOST[:PORT]")

    def plan_all(self, requests: Iterable[KeyedRequest]) -> dict[str, Plan | MeshwrightError]:
        """The plan of every request by its digest, or why there is none; raises as ``keep_report``."""
        by_digest = {key.digest: key for key in requests}
        with self._client() as client, ThreadPoolExecutor(max_workers=CONNECTIONS, thread_name_prefix="ask") as threads:
            answers = threads.map(lambda key: self._plan(client, key), by_digest.values())
            return dict(zip(by_digest, answers, strict=True))

    def keep_report(self, report: CheckReport, *, project: str) -> None:
        """Add a report to the history of a project, its hidden characters spelled out: names from before may have some.

        Raises ServiceError when the service does not answer as it should, InvalidInputError when it refuses.
        """
        body = {"project": project, "report": _readable(to_document(CheckReport, report))}
        with self._client() as client:
            answer = _send(client, "POST", "/v1/checks", compact_json(body))
        _raise_refusal(answer)

    def _client(self) -> httpx.Client:
        headers = {"user-agent": f"meshwright/{installed_version()}", "content-type": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return httpx.Client(base_url=self.url, headers=headers, timeout=ANSWER_TIMEOUT_S)

    def _plan(self, client: httpx.Client, key: KeyedRequest) -> Plan | MeshwrightError:
        answer = _send(client, "POST", "/v1/plans", key.text)
        try:
            _raise_refusal(answer)
            if answer.status_code == httpx.codes.ACCEPTED:
                answer = self._finished(client, answer)
            return _plan_in(answer, key)
        except InvalidInputError as error:
            return error

    def _finished(self, client: httpx.Client, accepted: httpx.Response) -> httpx.Response:
        """The plan of a job, when it is there."""
        answer = accepted
        address = urljoin(str(accepted.url), accepted.headers.get("location", ""))
        while True:
            self.sleep(_pause_s(answer))
            answer = _send(client, "GET", address)
            _raise_refusal(answer)
            job = _document(answer)
            if job.get("status") not in OPEN_JOB:
                break
        if job.get("status") != "succeeded" or not isinstance(job.get("plan"), str):
            problem = job.get("problem")
            detail = problem.get("detail") if isinstance(problem, dict) else None
            raise ServiceError(f"the service's job ended as {job.get('status')}: {detail or 'no reason given'}")
        plan = _send(client, "GET", urljoin(str(answer.url), job["plan"]))
        _raise_refusal(plan)
        return plan


def _readable(value: Any) -> Any:
    """A JSON value with every text of it readable."""
    if isinstance(value, dict):
        return {readable(name): _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return readable(value) if isinstance(value, str) else value


def _send(client: httpx.Client, method: str, address: str, body: str | None = None) -> httpx.Response:
    try:
        return client.request(method, address, content=None if body is None else body.encode())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServiceError(f"the service {client.base_url} does not answer: {error}") from error


def _raise_refusal(answer: httpx.Response) -> None:
    """Raise what the service says is wrong: InvalidInputError for the client's mistakes, ServiceError for its own."""
    if answer.is_success:
        return
    document = _document(answer) if "json" in answer.headers.get("content-type", "") else {}
    detail = str(document.get("detail") or answer.reason_phrase)
    if answer.is_client_error:
        raise InvalidInputError(f"the service refuses ({answer.status_code}): {detail}", given=answer.request.url.path)
    raise ServiceError(f"the service answers {answer.status_code} to {answer.request.url.path}: {detail}")


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServiceError(f"{answer.request.url} answers what is no JSON object: is Meshwright there?")
    return document


def _plan_in(answer: httpx.Response, key: KeyedRequest) -> Plan:
    """The plan in an answer; raises InvalidInputError for one that this machine would not have made."""
    plan = read_plan(_document(answer))
    if plan.digest != key.digest:
        raise InvalidInputError(
            "the service plans with another version or other calibrations, and its plans can't be compared with this lock",
            given=f"digest {plan.digest}",
            allowed=key.digest,
            remedy=f"run Meshwright {installed_version()} on both sides, with the same calibrations",
        )
    if not is_reproducible(plan, key.request):
        raise InvalidInputError(
            "the service's search stopped at its time limit, and such a plan can't be locked",
            given=plan.certificate.status.value,
            remedy="raise search.time_limit_s, or limit the work by search.max_candidates",
        )
    return plan


def _pause_s(answer: httpx.Response) -> float:
    wanted = answer.headers.get("retry-after", "")
    return min(float(wanted), MAX_POLL_S) if is_digits(wanted) else POLL_S
