"""Adding calibrations for a caller, and what a new one does to the plans that follow it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from meshwright.app.calibrations.store import CalibrationStore, Kept, change_of
from meshwright.app.db.engine import writing
from meshwright.app.measuring.documents import read_calibration_document
from meshwright.app.questions.repository import QuestionFilter
from meshwright.app.replans.service import ReplanOptions, ReplanPolicy, ReplanService, ReplanWish
from meshwright.app.requests.limits import check_values
from meshwright.app.security.principal import Principal


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding a calibration: what was kept, and the id of the batch, if one was started."""

    kept: Kept
    replan: str | None


class CalibrationService:
    """One caller's calibrations. Its methods block; call them in threads."""

    def __init__(self, engine: Engine, replans: ReplanService):
        self._engine, self._replans = engine, replans

    def add(self, caller: Principal, document: object, options: ReplanOptions) -> Added:
        """Store a calibration; a new one marks the plans that follow its device stale, in the same transaction.

        Raises ClusterError for a document that can't be used, DocumentError for a webhook that may not be called, StoreError.
        """
        self._replans.check_webhook(options.webhook)
        check_values(document)
        calibration = read_calibration_document(document)
        with writing(self._engine) as connection:
            kept = CalibrationStore(self._engine, caller.tenant).keep_with(connection, calibration)
            replan = None
            if kept.is_new and options.policy is ReplanPolicy.START:
                about = QuestionFilter(calibration=kept.row.key)
                wish = ReplanWish(about, cause=change_of(kept.row), version=kept.row.version, webhook=options.webhook)
                replan = self._replans.start(connection, caller, wish)
        return Added(kept, replan)
