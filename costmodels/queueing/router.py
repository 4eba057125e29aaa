"""Routers: how requests reach workers that are all alike."""

from __future__ import annotations

from enum import StrEnum


class Router(StrEnum):
    """How requests are dealt out: each to a worker drawn at random, evenly, or to one worker after the other."""

    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
