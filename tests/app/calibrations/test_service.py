"""The service plans with calibrations that its caller has stored, or that stand in the request."""

from __future__ import annotations

from dataclasses import replace

import httpx
import numpy as np

from app.calibrations.documents import fit_calibration
from app.calibrations.store import CalibrationStore
from app.db.engine import open_engine
from app.settings import Settings
from costmodels.board import board_of
from costmodels.calibration import Calibration
from costmodels.samples import samples_of
from tests.app.requests_given import training
from tests.costmodels.measurements import collective_rows


def fitted() -> Calibration:
    """A calibration of H100 whose collectives are made up; the rest is shipped."""
    rows = samples_of(collective_rows())
    samples = replace(rows, device=np.full(len(rows), "h100_sxm"))
    board = board_of(samples, key="h100_sxm", node=None, cores=1)
    return fit_calibration(samples, board, folds=2, on_curve=lambda name: None).calibration


def test_requests_name_stored_calibrations(client: httpx.Client, settings: Settings) -> None:
    engine = open_engine(settings.database_url)
    calibration = fitted()
    CalibrationStore(engine).keep(calibration)
    engine.dispose()
    shipped = client.post("/v1/plans", json=training()).json()
    assert "calibrations" not in shipped["request"]
    by_name = client.post("/v1/plans", json=training(calibrations=["h100_sxm@1"])).json()
    inline = client.post("/v1/plans", json=training(calibrations=[dict(calibration.document)])).json()
    assert by_name["digest"] == inline["digest"] != shipped["digest"]
    (group,) = by_name["request"]["cluster"]["groups"]
    assert group["node"]["device"]["calibration"] == calibration.name


def test_calibrations_that_are_not_there(client: httpx.Client) -> None:
    answer = client.post("/v1/plans", json=training(calibrations=["h100_sxm@1"]))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "calibrations.0"
    for wrong in ("h100.json", {}, {"schema": "meshwright.calibration/1", "key": "h100_sxm"}, 7):
        answer = client.post("/v1/plans", json=training(calibrations=[wrong]))
        assert answer.status_code == 422, wrong
