"""The kinds of choices that fields of a search are: each says what all fields of its kind have in common."""

from __future__ import annotations

from typing import Any

from meshwright.solver.problem.choice import (
    EVERY_FORM,
    TRAINING,
    Choice,
    Form,
    Launched,
    Lock,
    Part,
    Place,
    Published,
    Said,
    Unnamed,
)


def setting(word: str, forms: frozenset[Form] = EVERY_FORM, *, said: Said, at_most: float | None = None) -> Choice:
    """Return the choice of a field that decides which plans compete and for how long, but stands in none of them."""
    return Choice(
        word=word,
        forms=forms,
        launched=Launched.NOT_OF_A_PLAN,
        place=None,
        unnamed=Unnamed.DEFAULT,
        published=Published.AS_ASKED,
        said=said,
        lock=Lock.NOT_OF_A_PLAN,
        at_most=at_most,
    )


def restriction(
    word: str,
    place: Place,
    *,
    forms: frozenset[Form] = TRAINING,
    launched: Launched,
    published: Published | tuple[Any, ...],
    lock: Lock,
    unnamed: Unnamed = Unnamed.ANY,
) -> Choice:
    """Return the choice of a field that lists the values which a plan may have."""
    return Choice(
        word=word,
        forms=forms,
        launched=launched,
        place=place,
        unnamed=unnamed,
        published=published,
        said=Said.LISTED,
        lock=lock,
        at_most=None,
    )


def degree(
    word: str,
    forms: frozenset[Form],
    *,
    launched: Launched,
    published: Published | tuple[Any, ...] = Published.AS_ASKED,
    lock: Lock = Lock.AXES,
    unnamed: Unnamed = Unnamed.ANY,
) -> Choice:
    """Return the choice of a mesh axis."""
    place = Place(Part.AXES, word)
    return restriction(word, place, forms=forms, launched=launched, published=published, lock=lock, unnamed=unnamed)


def of_stages(word: str, path: str, *, launched: Launched, closed: tuple[Any, ...], lock: Lock = Lock.CHOICES) -> Choice:
    """Return the choice of something of stages that has its default alone unless a request names it, as for all published
    planners, whose values are ``closed``."""
    place = Place(Part.STAGES, path)
    return restriction(word, place, launched=launched, published=closed, lock=lock, unnamed=Unnamed.DEFAULT)


def opening(
    word: str, forms: frozenset[Form], place: Place, *, launched: Launched, lock: Lock, at_most: float | None = None
) -> Choice:
    """Return the choice of a field that opens a form, or an order of devices, which is not searched unless asked for."""
    return Choice(
        word=word,
        forms=forms,
        launched=launched,
        place=place,
        unnamed=Unnamed.DEFAULT,
        published=Published.AS_ASKED,
        said=Said.BY_FORM,
        lock=lock,
        at_most=at_most,
    )
