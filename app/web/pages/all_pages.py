"""All pages, in the order in which their places are looked up."""

from __future__ import annotations

from fastapi import APIRouter

from meshwright.app.web.pages import (
    api_reference,
    builder,
    calibrations,
    checks,
    clusters,
    diff,
    instead,
    launch,
    load,
    plans,
    replans,
    runs,
    several,
    sign_in,
    step,
    taking,
)

ROUTERS: tuple[APIRouter, ...] = tuple(
    module.router
    for module in (
        plans,
        builder,
        diff,
        instead,
        several,
        launch,
        runs,
        replans,
        clusters,
        calibrations,
        checks,
        step,
        load,
        taking,
        api_reference,
        sign_in,
    )
)
