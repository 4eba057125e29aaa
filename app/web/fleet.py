"""REST endpoints of registered models and clusters, and of the questions asked of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import body_of, json_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, NameFilter, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.service.replans import FleetService, PutOptions
from meshwright.app.store.fleet import Registered, RegisteredKind, RegisteredRepository
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import QuestionFilter, QuestionRepository
from meshwright.app.web.gate import ClusterKeeper, ClusterWriter, Reader
from meshwright.app.web.replans import AfterChange
from meshwright.app.web.schemas import (
    PutAnswer,
    QuestionPage,
    RegisteredDocument,
    RegisteredPage,
    address,
    put_answer,
    question_item,
    registered_document,
    registered_item,
)

router = APIRouter(prefix="/v1", tags=["fleet"])

IfMatch = Annotated[str | None, Header(max_length=200, description="ETag of the version that is to be replaced.")]
IfNoneMatch = Annotated[str | None, Header(max_length=1000, description="ETags that the caller has.")]
WithDependents = Annotated[
    bool, Query(description="Forget the questions that name it as well. Their plans stay; jobs that run are never ended.")
]
Version = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Which version; the newest when left out.")]
_PUT_PROBLEMS = problem_answers(400, 401, 403, 408, 412, 413, 415, 422, 429, 500, 503, 507)
_GET_PROBLEMS = problem_answers(401, 403, 404, 422, 429, 500, 503)
_DELETE_PROBLEMS = problem_answers(401, 403, 404, 409, 422, 429, 500, 503)
_LIST_PROBLEMS = problem_answers(401, 403, 422, 429, 500, 503)


_PUT_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The newest version is the same.", "model": PutAnswer},
    201: {"description": "A new version.", "model": PutAnswer},
    **_PUT_PROBLEMS,
}
_GET_ANSWERS: dict[int | str, dict[str, Any]] = {304: {"description": "The caller has it already."}, **_GET_PROBLEMS}


def put_options(replan: AfterChange, if_match: IfMatch = None) -> PutOptions:
    """Return the options of a new version that the caller gives: the version it replaces, and what follows for the plans."""
    expected = None if if_match is None or if_match.strip() == "*" else if_match.strip().strip('"')
    return PutOptions(expected, replan)


Options = Annotated[PutOptions, Depends(put_options)]


@router.put(
    "/clusters/{name}",
    summary="Register a cluster, or a new version of one",
    openapi_extra=body_of("ClusterSource"),
    response_model=PutAnswer,
    responses=_PUT_ANSWERS,
)
async def put_cluster(request: Request, caller: ClusterKeeper, name: str, options: Options) -> Response:
    """Register a cluster. When it changes, the plans that rest on it become stale."""
    return await _put(request, caller, RegisteredKind.CLUSTER, name, options)


@router.put(
    "/models/{name}",
    summary="Register a model, or a new version of one",
    openapi_extra=body_of("ModelSource"),
    response_model=PutAnswer,
    responses=_PUT_ANSWERS,
)
async def put_model(request: Request, caller: ClusterKeeper, name: str, options: Options) -> Response:
    """Register a model. When it changes, the plans that rest on it become stale."""
    return await _put(request, caller, RegisteredKind.MODEL, name, options)


@router.get("/clusters/{name}", summary="Get a registered cluster", response_model=RegisteredDocument, responses=_GET_ANSWERS)
def get_cluster(
    request: Request, caller: Reader, name: str, version: Version = None, if_none_match: IfNoneMatch = None
) -> Response:
    """A registered cluster, its newest version unless told."""
    return _get(request, caller, RegisteredKind.CLUSTER, name, version, if_none_match)


@router.get("/models/{name}", summary="Get a registered model", response_model=RegisteredDocument, responses=_GET_ANSWERS)
def get_model(
    request: Request, caller: Reader, name: str, version: Version = None, if_none_match: IfNoneMatch = None
) -> Response:
    """A registered model, its newest version unless told."""
    return _get(request, caller, RegisteredKind.MODEL, name, version, if_none_match)


@router.delete("/clusters/{name}", status_code=204, summary="Delete a registered cluster", responses=_DELETE_PROBLEMS)
def delete_cluster(request: Request, caller: ClusterWriter, name: str, with_dependents: WithDependents = False) -> None:
    """Delete a cluster with all its versions. Plans that were made on it stay."""
    request.app.state.fleet.delete(caller, RegisteredKind.CLUSTER, name, with_dependents=with_dependents)


@router.delete("/models/{name}", status_code=204, summary="Delete a registered model", responses=_DELETE_PROBLEMS)
def delete_model(request: Request, caller: ClusterWriter, name: str, with_dependents: WithDependents = False) -> None:
    """Delete a model with all its versions. Plans that were made of it stay."""
    request.app.state.fleet.delete(caller, RegisteredKind.MODEL, name, with_dependents=with_dependents)


@router.get("/clusters", summary="List registered clusters", responses=_LIST_PROBLEMS)
def list_clusters(request: Request, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> RegisteredPage:
    """Registered clusters, each in its newest version, last changed first."""
    return _page(request, caller, RegisteredKind.CLUSTER, None, cursor, limit)


@router.get("/registered-models", summary="List registered models", responses=_LIST_PROBLEMS)
def list_registered_models(request: Request, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> RegisteredPage:
    """Registered models, each in its newest version, last changed first. The catalogue's are at ``/v1/models``."""
    return _page(request, caller, RegisteredKind.MODEL, None, cursor, limit)


@router.get("/clusters/{name}/versions", summary="List the versions of a cluster", responses=_GET_PROBLEMS)
def list_cluster_versions(
    request: Request, caller: Reader, name: str, cursor: Cursor = None, limit: Limit = 50
) -> RegisteredPage:
    """Every version of a registered cluster, newest first."""
    return _page(request, caller, RegisteredKind.CLUSTER, name, cursor, limit)


@router.get("/models/{name}/versions", summary="List the versions of a model", responses=_GET_PROBLEMS)
def list_model_versions(
    request: Request, caller: Reader, name: str, cursor: Cursor = None, limit: Limit = 50
) -> RegisteredPage:
    """Every version of a registered model, newest first."""
    return _page(request, caller, RegisteredKind.MODEL, name, cursor, limit)


@router.get("/questions", summary="List questions", responses=_LIST_PROBLEMS)
def list_questions(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    cluster: NameFilter = None,
    model: NameFilter = None,
    stale: Annotated[bool | None, Query(description="Only those whose current plan is stale, or is not.")] = None,
    calibration: Annotated[
        str | None, Query(max_length=200, pattern=PRINTABLE, description="Only those planned with this device key's newest.")
    ] = None,
) -> QuestionPage:
    """Requests that name what changes, newest first, each with the plan that answers it now."""
    questions = QuestionRepository(request.app.state.engine, caller.tenant)
    before, wanted = before_of("question", cursor), QuestionFilter(cluster, model, stale, calibration)
    items, more = page_of(questions.page(wanted, before=before, limit=limit + 1), limit)
    following = cursor_of("question", items[-1].id) if more else None
    return QuestionPage(questions=[question_item(item) for item in items], next_cursor=following)


async def _put(request: Request, caller: Principal, kind: RegisteredKind, name: str, options: PutOptions) -> Response:
    settings: Settings = request.app.state.settings
    service: FleetService = request.app.state.fleet
    async with json_body(request, max_bytes=settings.max_body_bytes) as body:
        made = await body.work(service.put, caller, kind, name, body.document, options)
    answer = put_answer(made.version, stale=made.stale, replan=None if made.replan is None else f"/v1/replans/{made.replan}")
    headers = {"location": address(kind, name), "etag": _etag(made.version)}
    return JSONResponse(answer.model_dump(mode="json"), 201 if made.is_new else 200, headers)


def _get(
    request: Request, caller: Principal, kind: RegisteredKind, name: str, version: int | None, if_none_match: str | None
) -> Response:
    service: FleetService = request.app.state.fleet
    found = service.get(caller, kind, name, version)
    headers = {"etag": _etag(found), "cache-control": "private, no-cache"}
    if if_none_match is not None and found.digest in if_none_match:
        return Response(status_code=304, headers=headers)
    return JSONResponse(registered_document(found).model_dump(mode="json"), headers=headers)


def _page(
    request: Request, caller: Principal, kind: RegisteredKind, name: str | None, cursor: str | None, limit: int
) -> RegisteredPage:
    repository = RegisteredRepository(request.app.state.engine, caller.tenant, kind)
    before = before_of(kind.value, cursor)
    if name is None:
        found = repository.page(before=before, limit=limit + 1)
    else:
        request.app.state.fleet.get(caller, kind, name, None)
        found = repository.versions(name, before=before, limit=limit + 1)
    items, more = page_of(found, limit)
    following = cursor_of(kind.value, items[-1].id) if more else None
    return RegisteredPage(items=[registered_item(item) for item in items], next_cursor=following)


def _etag(version: Registered) -> str:
    return f'"{version.digest}"'
