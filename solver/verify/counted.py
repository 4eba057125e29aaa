"""Broken rules that count against a plan: one that was given is not bound to what a search may choose, and an infeasible one
exceeds the limit that it names; and whoever checks may ask about some subjects alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

from meshwright.solver.answer.plan import Plan
from meshwright.solver.verify.violation import Rule, Subject, Violation


class SpaceRules(StrEnum):
    """The plans that must keep to the space of ``request.search``."""

    OF_SEARCHED_PLANS = "searched plans"
    OF_ALL_PLANS = "all plans"


class Counted:
    """The violations of a plan that count, and the limits of the request that it exceeds."""

    def __init__(self, plan: Plan, space_rules: SpaceRules, subjects: Collection[Subject]):
        self._plan = plan
        # A search always proves some bound; a training plan that was only predicted claims none.
        given = plan.kind == "training" and plan.certificate.bound is None
        self._is_free = given and space_rules is SpaceRules.OF_SEARCHED_PLANS
        self._subjects = frozenset(subjects)
        self._exceeded: set[str] = set()

    def of(self, violations: Iterable[Violation]) -> tuple[Violation, ...]:
        """Those of the violations that count."""
        return tuple(violation for violation in violations if self._counts(violation))

    def unfounded_reason(self) -> Iterator[Violation]:
        """The reason of an infeasible plan names a limit that the plan exceeds."""
        reason = self._plan.reason
        if not self._plan.feasible and reason is not None and reason.constraint not in self._exceeded:
            exceeded = ", ".join(sorted(self._exceeded)) or "no limit"
            yield Violation(Rule.REASON, "plan.reason", f"{reason.constraint}, the plan exceeds {exceeded}")

    def _counts(self, violation: Violation) -> bool:
        if violation.limit and not self._plan.feasible:
            self._exceeded.add(violation.limit)
            return False
        if violation.rule.subject not in self._subjects:
            return False
        return not (self._is_free and violation.rule in (Rule.SEARCH, Rule.LAUNCHER))
