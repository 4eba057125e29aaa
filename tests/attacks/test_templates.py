"""Templates of pages: whatever a value holds is shown as text, in every template there is, and no module writes tags."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from meshwright.app.base.quoting import HIDDEN, xml_line
from meshwright.app.base.templates import Code, Hyperlink, Templates, Words
from meshwright.app.pictures.page import PagePart, PageTable, PlanView
from meshwright.app.requests.options import Option, Task

APP = Path(__file__).resolve().parents[2] / "app"
FOLDERS = (APP / "web" / "templates", APP / "pictures" / "templates")
FILES = sorted(path for folder in FOLDERS for path in folder.iterdir())
TEMPLATES = Templates(*FOLDERS)

OWN = {"style": "/pages.css", "script": "/pages.js", "events": None}
FRAME_SCRIPT = '<script src="/pages.js" defer></script>'

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</title></style></pre><h1>owned</h1>",
    "&lt;b&gt; & &#60;",
    "{{ 7 * 7 }}{% raw %}{# #}",
    "a\x00b\u202ec\x1b[2J\nd",
)


def values_of(x: str) -> Mapping[str, dict[str, Any]]:
    """What each page shows, all of its words being ``x``; after a template's name may stand which of its pages."""
    row: tuple[Words, ...] = (x, Hyperlink(x, x), Code(x), (x, Hyperlink(x, x)))
    table = {"rows": [row], "more": Hyperlink(x, x), "problem": x}
    drawn = [(x, x)]
    given = {"given": {"cluster": x, "model": x, "gpus": x, "name": x, "words": x, "software": x, "label": x, x: x}}
    part = PagePart(
        title=x,
        drawing=x,
        said=x,
        tables=[PageTable(name=x, heads=(x,), rows=[row], caption=x, left=1)],
        items=row,
        command=x,
    )
    view = PlanView(x, x, [x], [x], [part], [x])
    launch = {"launcher": x, "version": x, "command": x, "assumptions": [x], "inexpressible": [x]}
    job = SimpleNamespace(
        model=x,
        status=SimpleNamespace(value=x, is_final=False),
        progress=SimpleNamespace(done=1, total=2, note=x),
        problem=SimpleNamespace(title=x, detail=x),
    )
    moves = SimpleNamespace(said=x, gone=x, kinds=[row], drawing=x, stages=[row], left=2)
    endpoint = SimpleNamespace(name=x, anchor=x, lines=[(x, Code(x))], parameters=[row], body=row, answers=[row])
    documents = [
        SimpleNamespace(name=x, description=(x, Code(x)), fields=[(x, row, (x, Code(x)))], type=""),
        SimpleNamespace(name=x, description=(), fields=[], type=row),
    ]
    calibration: dict[str, Any] = {
        **dict.fromkeys(("key", "version", "newer_since", "stored", "samples", "digest", "followed"), x),
        "newer": Hyperlink(x, x),
        "sources": [x, x],
        "learned": [x],
        "drawings": drawn,
        "is_stale": True,
        **{key: [row] for key in ("runs", "errors", "plans")},
    }
    return {
        "answer.html": {"title": x, "view": view},
        "api.html": {"info": {"title": x, "version": x}, "tags": {x: [endpoint]}, "documents": documents},
        "builder.html": {
            "problem": x,
            "chosen": x,
            "clusters": drawn,
            **given,
            "options": {x * n: Option(x, x, label=x, example=x, task=task) for n, task in enumerate((None, *Task), start=1)},
        },
        "calibration.html": calibration | {"is_of_runs": False},
        "calibration.html of runs": calibration | {"is_of_runs": True},
        "calibrations.html": table,
        "check.html": {**table, "project": Hyperlink(x, x), "said": x},
        "checks.html": table,
        "cluster.html": {
            "newest": SimpleNamespace(name=x, digest=x),
            "version": x,
            "may_write": True,
            **{key: [row] for key in ("nodes", "plans", "replans", "versions")},
        },
        "clusters.html": {**table, **given, "may_write": True},
        "diff.html": {
            "old": x,
            "new": x,
            "lost": x,
            "from_plans": drawn,
            "to_plans": drawn,
            "facts": [row],
            "moves": moves,
            "problem": x,
        },
        "error.html": {"title": x, "lines": [x]},
        "file.html": {"view": view},
        "instead.html": {"plan": Hyperlink(x, x), "digest": x, "name": x, "facts": [(x, row)]},
        "job.html": {"job": job, "figures": [x], "events": x},
        "launch.html": {
            "plan": Hyperlink(x, x),
            "digest": x,
            "launcher": x,
            "launchers": drawn,
            "scheduler": x,
            "schedulers": drawn,
            "problem": x,
            "launch": launch,
            "submit": x,
            "files": [(x, Hyperlink(x, x), x)],
        },
        "load.html": {
            "plan": Hyperlink(x, x),
            "said": x,
            "percentiles": [row],
            "drawings": drawn,
            "unit": x,
            "loads": [row],
            "files": row,
        },
        "not_found.html": {},
        "plan.html": {
            "view": view,
            "stale_since": x,
            "actions": row,
            "runs": [row],
            "all_runs": Hyperlink(x, x),
            "files": row,
        },
        "plans.html": {**table, "model": x, "states": drawn, "staleness": x},
        "replan.html": {
            **table,
            "batch": SimpleNamespace(id=x, cause=x, status=x),
            "every": 2,
            "done": 1,
            "progress": x,
            "facts": [(x, row)],
            "may_cancel": True,
            "outcomes": drawn,
            "outcome": x,
        },
        "replans.html": {**table, "stale": x, "may_start": True},
        "run.html": {
            **given,
            "plan": Hyperlink(x, x),
            "digest": x,
            "problem": x,
            "outcomes": drawn,
            "figures": [(x, x, x)],
        },
        "runs.html": {**table, "plan": Hyperlink(x, x)},
        "several.html": {
            "plan": Hyperlink(x, x),
            "digest": x,
            "clusters": x,
            "heads": (x, x),
            "rows": [row],
            "problem": x,
            "may_write": True,
        },
        "sign_in.html": {"problem": x},
        "step.html": {"plan": Hyperlink(x, x), "ways": row, "drawing": x},
        "trend.html": {**table, "plan": x, "project": Hyperlink(x, x), "drawings": drawn},
    }


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


def shown(name: str, word: str) -> str:
    return TEMPLATES.render(name.split()[0], is_signed_in=True, refresh_s=2, **(OWN | values_of(word)[name]))


def test_every_page_is_rendered_here() -> None:
    whole = {path.name for path in FILES if re.search(r"{% extends|<!DOCTYPE", path.read_text(encoding="utf-8"))}
    assert whole - {"frame.html"} == {name.split()[0] for name in values_of("")}


@pytest.mark.parametrize("name", values_of(""))
@pytest.mark.parametrize("word", HOSTILE)
def test_a_value_is_text_whatever_it_holds(name: str, word: str) -> None:
    text = shown(name, word)
    assert Elements(text).found == Elements(shown(name, "good")).found
    assert (
        text.count("<script") == text.count(FRAME_SCRIPT) <= 1
        and "49" not in text
        and not HIDDEN.search(text.replace("\n", ""))
    )
    assert xml_line(word) in unescape(text) or not values_of(word)[name]


def test_only_what_is_marked_as_markup_is_taken_as_it_is() -> None:
    values = {"plan": Hyperlink("/", "p"), "ways": ()}
    for drawing, expected in ((Markup("<svg></svg>"), "<svg></svg>"), ("<svg></svg>", "&lt;svg&gt;&lt;/svg&gt;")):
        assert expected in TEMPLATES.render("step.html", is_signed_in=False, refresh_s=None, **OWN, drawing=drawing, **values)


def test_a_value_that_a_module_forgets_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        TEMPLATES.render("error.html", is_signed_in=False, refresh_s=None, **OWN, title="x")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_template_takes_a_value_as_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace('<script src="{{ script }}" defer></script>', "")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup|<script|\bon\w+=", text)
    assert not re.search(r"=\s*{{", text), "attributes are quoted"


PAGES = [*sorted((APP / "web" / "pages").glob("*.py")), APP / "pictures" / "page.py"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_module_of_a_page_quotes_or_writes_tags(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None), *(each.name for each in node.names)}
            assert not names & {"html", "markupsafe", "Markup", "escape", "html_text", "html_attribute"}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"<[a-zA-Z/!]", node.value), node.value


def test_markup_is_made_where_its_parts_are_quoted() -> None:
    makers = {path.relative_to(APP).as_posix() for path in APP.rglob("*.py") if "Markup(" in path.read_text(encoding="utf-8")}
    assert makers == {"base/templates.py", "pictures/svg.py"}


MARKUP_OF_WORDS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|document\.write|srcdoc|\beval\b|\bFunction\b"
    r"|set(Timeout|Interval)\(\s*[\"'`]|\bimport\b|https?://(?!www\.w3\.org/2000/svg)"
)


def test_the_script_makes_text_of_words_and_asks_nobody_else() -> None:
    text = (APP / "web" / "templates" / "pages.js").read_text(encoding="utf-8")
    assert not MARKUP_OF_WORDS.search(text)
