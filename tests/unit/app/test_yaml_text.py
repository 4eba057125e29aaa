"""YAML that exporters write: a parser reads what was meant, and no line of it is obeyed."""

from __future__ import annotations

import yaml
from hypothesis import example, given, settings

from meshwright.app.base.quoting import yaml_text
from tests.attacks.names import COMMAND, names
from tests.attacks.runner import check_lines


@settings(max_examples=60, deadline=None)
@example("a\n::set-output name=x::y")
@example("##[error]x")
@example("\u202e: [x]")
@example(COMMAND)
@given(name=names)
def test_a_strangers_text_stays_a_text(name: str) -> None:
    document = {"model": name, "list": [name, {"in": name}], "count": 3, "on": True}
    text = yaml_text(document)
    check_lines(text)
    assert yaml.safe_load(text) == document
