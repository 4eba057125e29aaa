"""The sign-in of the pages: a key of the service, kept in a cookie that no script can read."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.errors import AuthenticationError
from meshwright.app.edge.first_visit import PATH, FirstVisit
from meshwright.app.edge.loopback import is_called_by_loopback
from meshwright.app.web.gate import RequestGate
from meshwright.app.web.pages.layout import COOKIE, HEADERS, SCRIPT, STYLE, render
from meshwright.app.web.pages.routes import PageRoute, form_of

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/pages.css")
def style_sheet(v: str = "") -> Response:
    """The style of all pages."""
    return STYLE.answer(v)


@router.get("/pages.js")
def script(v: str = "") -> Response:
    """The script of all pages."""
    return SCRIPT.answer(v)


@router.get("/sign-in")
def ask_for_key() -> Response:
    """The form that asks for a key."""
    return render(None, "sign_in.html", problem=None)


@router.get(PATH)
async def first_visit(request: Request, token: str = "") -> Response:
    """Sign in whoever followed the link that the service printed when it started."""
    visit: FirstVisit | None = request.app.state.first_visit
    if visit is None or not is_called_by_loopback(request.headers.get("host")):
        return RedirectResponse("/sign-in", 303, HEADERS)
    try:
        key = await asyncio.to_thread(visit.key, token)
    except AuthenticationError as error:
        return render(None, "sign_in.html", status=401, problem=str(error))
    return _signed_in(request, key)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keep a key that holds in the caller's cookie, for this session of the browser."""
    gate: RequestGate = request.app.state.gate
    key = (await form_of(request)).get("key", "")
    try:
        await gate.admit(request, shown=f"Bearer {key}")
    except AuthenticationError as error:
        return render(None, "sign_in.html", status=401, problem=str(error))
    return _signed_in(request, key)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forget the key."""
    await form_of(request)
    response = RedirectResponse("/sign-in", 303, HEADERS)
    response.delete_cookie(COOKIE, path="/")
    return response


def _signed_in(request: Request, key: str) -> Response:
    response = RedirectResponse("/", 303, HEADERS)
    # Whoever says so falsely keeps a cookie from travelling in the open, and no more.
    is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").strip().lower())
    response.set_cookie(COOKIE, key, httponly=True, samesite="strict", secure=is_secure, path="/")
    return response
