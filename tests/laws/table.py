"""All laws, in the order of docs/design.md."""

from __future__ import annotations

from tests.laws import every_value, growth, learning, other_kind

LAWS = {"growth": growth.LAW, "learning": learning.LAW, "every_value": every_value.LAW, "other_kind": other_kind.LAW}
