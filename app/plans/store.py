"""Plans kept and found again: documents on this side, rows on the other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Engine

from meshwright.app.calibrations.repository import CalibrationRepository, StaleUse
from meshwright.app.db.tables.metadata import DEFAULT_TENANT
from meshwright.app.documents.json_text import compact_json
from meshwright.app.errors import PlanNotFoundError
from meshwright.app.plans.digest import DIGEST_PATTERN, SHORT_DIGEST_PATTERN
from meshwright.app.plans.documents import join_texts, plan_document
from meshwright.app.plans.keyed import KeyedRequest
from meshwright.app.plans.repository import PlanFilter, PlanRepository, PlanSummary, StoredPlan
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import Plan


def plan_row(plan: Plan, key: KeyedRequest) -> StoredPlan:
    """The row of a plan that is stored now."""
    return StoredPlan(
        digest=key.digest,
        created_at=datetime.now(UTC),
        model=plan.model,
        kind=plan.kind,
        feasible=plan.feasible,
        status=plan.certificate.status.value,
        devices=plan.devices,
        tokens_per_s=plan.predicted.tokens_per_s if plan.predicted else None,
        plan=compact_json(plan_document(replace(plan, digest=key.digest))),
        request=key.text,
    )


class PlanStore:
    """One tenant's plan documents by digest. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._plans = PlanRepository(engine, tenant)
        self._calibrations = CalibrationRepository(engine, tenant)

    def find(self, digest: str) -> str | None:
        """Text of the plan document stored under a digest."""
        stored = self._plans.find(digest)
        return None if stored is None else join_texts(stored.plan, stored.request)

    def get(self, digest: str) -> str:
        """As ``find``; raises PlanNotFoundError when there is none, PlanFileError when this is no digest."""
        if not DIGEST_PATTERN.fullmatch(digest):
            raise PlanFileError("this is no digest", given=digest, allowed="sha256: and 64 hexadecimal digits")
        text = self.find(digest)
        if text is None:
            raise PlanNotFoundError("no plan is stored under this digest", given=digest)
        return text

    def get_by_short_digest(self, short: str) -> str:
        """The one plan whose digest starts so; raises PlanNotFoundError, or PlanFileError when several do."""
        if not SHORT_DIGEST_PATTERN.fullmatch(short):
            allowed = "sha256: and at least 8 hexadecimal digits"
            raise PlanFileError("this is no digest", given=short, allowed=allowed)
        found = self._plans.find_by_prefix(short, limit=2)
        if not found:
            raise PlanNotFoundError("no plan is stored under this digest", given=short)
        if len(found) > 1:
            raise PlanFileError("several plans have a digest that starts so", given=short, remedy="give more digits")
        return self.get(found[0])

    def keep(self, plan: Plan, key: KeyedRequest) -> tuple[str, bool]:
        """Store a plan unless one is stored already: text of the document that is stored now, and whether it is new."""
        stored, is_new = self._plans.add(plan_row(plan, key))
        return join_texts(stored.plan, stored.request), is_new

    def page(self, wanted: PlanFilter, *, before: int | None, limit: int) -> tuple[PlanSummary, ...]:
        """Newest plans first, at most ``limit`` of those that arrived before row ``before``."""
        return self._plans.page(wanted, before=before, limit=limit)

    def stale_uses(self, *digests: str) -> tuple[StaleUse, ...]:
        """Calibrations that these plans rest on and that newer ones, stored after the plan, replace."""
        return self._calibrations.stale_uses(digests)

    def stale_since(self, *digests: str) -> dict[str, datetime]:
        """When plans became stale, by digest; fresh plans are left out."""
        since: dict[str, datetime] = {}
        for use in self.stale_uses(*digests):
            since[use.plan_digest] = min(use.since, since.get(use.plan_digest, use.since))
        return since
