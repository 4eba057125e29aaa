"""Shared by the tests of rest replans and others: Json, BySize, put, ask, Receiver."""

from __future__ import annotations

import http.server
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.support.fakes import FakeSolver, feasible_plan, infeasible_plan
from tests.support.requests_given import training

Json = dict[str, Any]


class BySize(FakeSolver):
    """More nodes are faster, except for seed 7, which does not care; seed 5 needs two nodes, seed 6 always fails."""

    def __call__(self, request: PlanRequest, *beat: Any) -> Plan:
        self.calls += 1
        seed, nodes = request.search.seed, request.cluster.n_devices // 8
        if seed == 6 and nodes != 2:
            raise ZeroDivisionError("secret")
        if seed == 5 and nodes < 2:
            return infeasible_plan(request)
        plan = feasible_plan(request)
        objective = 16.0 if seed == 7 else 16.0 / nodes
        return replace(plan, certificate=replace(plan.certificate, objective=objective))


def put(client: httpx.Client, nodes: int, **params: str) -> Json:
    document: Json = client.put("/v1/clusters/prod", json={"catalog": "dgx-h100", "nodes": nodes}, params=params).json()
    return document


def ask(client: httpx.Client, *seeds: int) -> None:
    for seed in seeds:
        answer = client.post("/v1/plans", json=training(cluster={"name": "prod"}, search={"seed": seed}))
        assert answer.status_code == 201, answer.text


@dataclass
class Receiver:
    """An HTTP server that notes what it is sent, and answers with the next of its statuses; 0 is no answer for a long time."""

    statuses: list[int]
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    forget: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> http.server.HTTPServer:
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = receiver.statuses.pop(0)
                if not status:
                    receiver.forget.wait(60)
                    return
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server
