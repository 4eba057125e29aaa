"""Loaded once by the fork server of questions: the solver with its compiled loops, so that no question compiles or loads them.

Importing this module answers the example questions.
"""

from __future__ import annotations

from meshwright.app.service.answers import explanation
from meshwright.app.service.asking import EXPLANATION_EXAMPLES

for _example in EXPLANATION_EXAMPLES.values():
    explanation(_example["value"])
