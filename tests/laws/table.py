"""All laws, in the order of docs/design.md."""

from __future__ import annotations

from tests.laws import learning

LAWS = {"learning": learning.LAW}
