"""All laws, in the order of docs/design.md."""

from __future__ import annotations

from tests.laws import learning, other_kind

LAWS = {"learning": learning.LAW, "other_kind": other_kind.LAW}
