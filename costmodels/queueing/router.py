"""Routers: how requests reach workers that are all alike."""

from __future__ import annotations

from enum import StrEnum


class Router(StrEnum):
    """How requests are dealt out: each to a worker drawn at random, evenly, to one worker after the other, or to the one that
    holds the fewest, waiting or running, of several to the next in turn."""

    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
