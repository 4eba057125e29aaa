"""Reader of operator-sharding problems in the format of the ASPLOS 2025 contest (google/iopddl), .json or .json.gz."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.app.base.documents import read_bounded
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.sharding_problem.problem import ShardingProblem, problem_from_lists

MAX_JSON_BYTES = 2**28
"""Largest JSON text read, after decompression: nearly three times the largest contest instance (93 MB)."""


def read_sharding_problem(path: Path) -> ShardingProblem:
    """Read and check a problem; raises InvalidInputError that names the file and what is wrong in it."""
    text = _read_text(path)
    try:
        problem = _Document.model_validate_json(text).problem
    except ValidationError as error:
        raise InvalidInputError(
            f"{path.name} is not an operator-sharding problem: {_first_error(error)}",
            allowed='{"problem": {"name", "nodes": {"intervals", "costs", "usages"}, "edges": {"nodes", "costs"}, '
            '"usage_limit"}}, all numbers integers',
        ) from error
    try:
        return problem_from_lists(
            name=problem.name,
            intervals=problem.nodes.intervals,
            node_costs=problem.nodes.costs,
            node_usages=problem.nodes.usages,
            edge_nodes=problem.edges.nodes,
            edge_costs=problem.edges.costs,
            usage_limit=problem.usage_limit,
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{path.name}: {error}") from error


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Nodes(_Strict):
    intervals: list[list[int]]
    costs: list[list[int]]
    usages: list[list[int]]


class _Edges(_Strict):
    nodes: list[list[int]]
    costs: list[list[int]]


class _Problem(_Strict):
    name: str
    nodes: _Nodes
    edges: _Edges
    usage_limit: int | None = None


class _Document(_Strict):
    problem: _Problem


def _read_text(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return read_bounded(file, limit=MAX_JSON_BYTES, what=f"file {path.name}")
    except OSError as error:
        raise InvalidInputError(
            f"{path.name} can't be read: {error.strerror or error}",
            given=str(path),
            allowed="a .json or .json.gz file",
        ) from error


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])
