"""REST endpoints of the secrets that webhook calls are signed with, for administrators of a tenant."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from fastapi import APIRouter, Request

from meshwright.app.base.records import read_record
from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import body_of, json_body
from meshwright.app.edge.problems import problem_answers
from meshwright.app.edge.schemas import (
    MadeWebhookSecretItem,
    RotationDocument,
    WebhookSecretItem,
    WebhookSecretList,
    made_webhook_secret_item,
    webhook_secret_item,
)
from meshwright.app.edge.webhook_secrets import end_secret, rotate_secret
from meshwright.app.store.security import WebhookSecretRepository
from meshwright.app.web.gate import Admin

router = APIRouter(prefix="/v1/webhook-secrets", tags=["security"])

MAX_BODY_BYTES = 16_384


@router.post(
    "",
    status_code=201,
    summary="Make or rotate the webhook secret",
    openapi_extra=body_of("RotationDocument"),
    responses=problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
)
async def rotate(request: Request, caller: Admin) -> MadeWebhookSecretItem:
    """A new secret of the caller's tenant. The one before signs beside it for ``grace_hours`` more, 0 ends all others."""
    async with json_body(request, max_bytes=MAX_BODY_BYTES) as body:
        document = body.document
    settings: Settings = request.app.state.settings
    grace = timedelta(hours=read_record(RotationDocument, document, what="rotation").grace_hours)
    made = await asyncio.to_thread(
        rotate_secret, _secrets(request), caller.tenant, service_secret=settings.webhook_secret, grace=grace
    )
    return made_webhook_secret_item(made)


@router.get("", summary="List webhook secrets", responses=problem_answers(401, 403, 429, 500, 503))
def list_secrets(request: Request, caller: Admin) -> WebhookSecretList:
    """The tenant's webhook secrets without their texts, oldest first, ended ones included."""
    found = _secrets(request).list(caller.tenant)
    return WebhookSecretList(webhook_secrets=[webhook_secret_item(secret) for secret in found])


@router.delete("/{secret_id}", summary="End a webhook secret", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def end(request: Request, caller: Admin, secret_id: str) -> WebhookSecretItem:
    """Sign nothing with a secret from now on. It stays in the list."""
    return webhook_secret_item(end_secret(_secrets(request), secret_id, tenant=caller.tenant))


def _secrets(request: Request) -> WebhookSecretRepository:
    return WebhookSecretRepository(request.app.state.engine)
