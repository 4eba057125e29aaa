"""REST endpoints of API keys and of the audit log, for administrators of a tenant."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from fastapi import APIRouter, Request

from meshwright.app.base.records import read_record
from meshwright.app.edge.bodies import body_of, json_body
from meshwright.app.edge.keys import KeyWish, checked_prefix, create_key, revoke_key, rotate_key
from meshwright.app.edge.lists import Cursor, Limit, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.edge.schemas import (
    AuditPage,
    KeyItem,
    KeyList,
    MadeKeyItem,
    NewKeyDocument,
    RotationDocument,
    audit_item,
    key_item,
    made_key_item,
)
from meshwright.app.store.security import AuditRepository, KeyRepository
from meshwright.app.web.gate import Admin

router = APIRouter(prefix="/v1", tags=["security"])

MAX_KEY_BODY_BYTES = 16_384


@router.post(
    "/keys",
    status_code=201,
    summary="Make an API key",
    openapi_extra=body_of("NewKeyDocument"),
    responses=problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
)
async def make_key(request: Request, caller: Admin) -> MadeKeyItem:
    """A new API key of the caller's tenant. Its text is in this answer and nowhere else."""
    async with json_body(request, max_bytes=MAX_KEY_BODY_BYTES) as body:
        document = body.document
    wish = read_record(NewKeyDocument, document, what="key")
    made = await asyncio.to_thread(
        create_key, _keys(request), KeyWish(caller.tenant, wish.name, frozenset(wish.scopes), wish.expires_in_days)
    )
    return made_key_item(made)


@router.get("/keys", summary="List API keys", responses=problem_answers(401, 403, 429, 500, 503))
def list_keys(request: Request, caller: Admin) -> KeyList:
    """The tenant's API keys, oldest first, ended ones included."""
    return KeyList(keys=[key_item(key) for key in _keys(request).list(caller.tenant)])


@router.get("/keys/{prefix}", summary="Get an API key", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def get_key(request: Request, caller: Admin, prefix: str) -> KeyItem:
    """An API key, without its text."""
    return key_item(_keys(request).get(checked_prefix(prefix), tenant=caller.tenant))


@router.post(
    "/keys/{prefix}/rotation",
    status_code=201,
    summary="Rotate an API key",
    openapi_extra=body_of("RotationDocument"),
    responses=problem_answers(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
)
async def rotate(request: Request, caller: Admin, prefix: str) -> MadeKeyItem:
    """A new key with the same scopes; the old one holds for ``grace_hours`` more."""
    async with json_body(request, max_bytes=MAX_KEY_BODY_BYTES) as body:
        document = body.document
    grace = timedelta(hours=read_record(RotationDocument, document, what="rotation").grace_hours)
    made = await asyncio.to_thread(rotate_key, _keys(request), prefix, tenant=caller.tenant, grace=grace)
    return made_key_item(made)


@router.delete("/keys/{prefix}", summary="Revoke an API key", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def revoke(request: Request, caller: Admin, prefix: str) -> KeyItem:
    """Refuse a key from now on. It stays in the list."""
    return key_item(revoke_key(_keys(request), prefix, tenant=caller.tenant))


@router.get("/audit", summary="List the audit log", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_audit(
    request: Request,
    caller: Admin,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> AuditPage:
    """Changes that the tenant's callers made and what they were refused, newest first."""
    entries = AuditRepository(request.app.state.engine)
    found, more = page_of(entries.page(caller.tenant, before=before_of("audit", cursor), limit=limit + 1), limit)
    following = cursor_of("audit", found[-1].id) if more else None
    return AuditPage(entries=[audit_item(entry) for entry in found], next_cursor=following)


def _keys(request: Request) -> KeyRepository:
    return KeyRepository(request.app.state.engine)
