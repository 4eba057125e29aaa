"""Questions that processes with limits answer, for as long as their asker is there."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from meshwright.app.service.child import Answering, Children, Document
from meshwright.app.store.principal import Principal

LOOK_EVERY_S = 0.5
"""The time between two looks whether the asker is still there."""


async def asked_of_child(request: Request, caller: Principal, answering: Answering, document: Document) -> Document:
    """Return a child's answer to a question of the caller.

    Raises as ``Children.answer``, and ClientDisconnect if the caller goes.
    """
    return await _answer(request, request.app.state.children, caller, answering, document)


async def drawn_by_child(request: Request, caller: Principal, drawing: Answering, document: Document) -> Document:
    """Return what a child draws for a page of the caller; raises as ``asked_of_child``.

    Pages wait for one another, not for the questions of their tenant, which may take a minute.
    """
    return await _answer(request, request.app.state.drawing, caller, drawing, document)


async def _answer(
    request: Request, children: Children, caller: Principal, answering: Answering, document: Document
) -> Document:
    answer = asyncio.ensure_future(children.answer(caller.tenant, answering, document))
    try:
        while True:
            await asyncio.wait((answer,), timeout=LOOK_EVERY_S)
            if answer.done():
                return answer.result()
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        answer.cancel()
