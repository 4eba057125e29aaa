"""The restrictions of a request, in the words of a certificate."""

from __future__ import annotations

from meshwright.solver.problem.choice import Form, Said
from meshwright.solver.problem.search import LEDGER, Search


def restrictions_text(search: Search, forms: frozenset[Form]) -> str:
    """Return the choices of these forms that a search restricts, with the values it allows; empty where it restricts none."""
    fixed = [
        f"{entry.choice.word} in {sorted(str(getattr(value, 'value', value)) for value in getattr(search, name))}"
        for name, entry in LEDGER.items()
        if entry.choice.said is Said.LISTED and entry.choice.forms & forms and getattr(search, name)
    ]
    return f"; restricted to {', '.join(fixed)}" if fixed else ""
