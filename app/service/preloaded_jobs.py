"""Loaded once by a worker's fork server: the solver, with its compiled loops ready, so that no child compiles or loads them.

Importing this module solves a small request of each kind.
"""

from __future__ import annotations

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.examples import SERVING_REQUEST, TRAINING_REQUEST
from meshwright.app.requests.resolve import NoFiles, resolve_request

WARM_UP_S = 10.0

for _document in (TRAINING_REQUEST, SERVING_REQUEST):
    solve_here(resolve_request(_document | {"search": {"time_limit_s": WARM_UP_S}}, files=NoFiles()))
