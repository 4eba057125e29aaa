"""Calibrations of a command's own store, which is opened when a request names one."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.requests.models import NO_REGISTRY
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.problem.graph import ModelGraph


class CalibrationsOf:
    """The calibrations of the settings' database, opened when a request names one."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def find(self, reference: str) -> Calibration:
        """The calibration of a reference; raises CalibrationNotFoundError or StoreError."""
        from meshwright.app.store.calibrations import CalibrationStore
        from meshwright.app.store.engine import open_engine
        from meshwright.app.store.migrate import ensure_ready

        engine = open_engine(self._settings.database_url)
        try:
            ensure_ready(engine)
            return CalibrationStore(engine).find(reference)
        finally:
            engine.dispose()


class RunsOf:
    """The calibrations that were learned from runs in the settings' database, for a command's request."""

    def __init__(self, settings: Settings, on_trouble: Callable[[str], None]):
        self._settings, self._on_trouble = settings, on_trouble

    def model(self, name: str) -> ModelGraph:
        """Always refuses."""
        return NO_REGISTRY.model(name)

    def cluster(self, name: str) -> Cluster:
        """Always refuses."""
        return NO_REGISTRY.cluster(name)

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest calibration of a key; None when there is none, and, told, when the database can't be used."""
        from meshwright.app.store.calibrations import CalibrationStore
        from meshwright.app.store.engine import open_engine
        from meshwright.app.store.migrate import ensure_ready

        try:
            engine = open_engine(self._settings.database_url)
            try:
                ensure_ready(engine)
                return CalibrationStore(engine).newest(key)
            finally:
                engine.dispose()
        except StoreError as error:
            self._on_trouble(f"warning: planning without what was learned from runs: {error}")
            return None

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return True: plans on this machine use what was learned on it."""
        return True
