"""The answers: plans, simulations, launches and validations, as values, documents and data frames."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshwright._asked import Request
from meshwright._documents import FileName
from meshwright._frames import frame
from meshwright.app.base.output_files import write_output
from meshwright.app.base.quoting import json_text
from meshwright.app.requests.plan_documents import answer_document, interval_rows, stage_rows
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.app.evidence.tables import TableReport
    from meshwright.app.launching.parts.export import Export
    from meshwright.app.service.explaining.explanation import Explanation as Explained
    from meshwright.solver.serving.workers.simulation import ServingSimulation

PlanRows = Literal["stages", "summary", "frontier", "runners_up"]
"""The tables that a plan has."""

_SUMMARY = (
    "model",
    "kind",
    "digest",
    "feasible",
    "devices",
    "certificate",
    "predicted",
    "axes",
    "microbatch",
    "schedule",
    "serving",
)
"""Fields of a plan document that its summary holds."""


@dataclass(frozen=True, repr=False)
class Plan:
    """The answer to a request: a plan, or, where ``feasible`` is False, why there is none (``reason``)."""

    _answered: AnsweredRequest

    @property
    def request(self) -> Request:
        """The request that it answers."""
        return Request(self._answered.request)

    @property
    def feasible(self) -> bool:
        """True if there is a plan that meets every constraint."""
        return self._answered.plan.feasible

    @property
    def status(self) -> str:
        """The claim of the certificate: "optimal", "feasible", "infeasible", or "undecided" where the search was cut short."""
        return self._answered.plan.certificate.status.value

    @property
    def gap(self) -> float | None:
        """The distance of the objective from the best one, at most, as a share of it; None without a plan."""
        return self._answered.plan.certificate.gap

    @property
    def reason(self) -> str | None:
        """The reason why nothing fits, in a sentence; None of a feasible plan."""
        reason = self._answered.plan.reason
        return None if reason is None else reason.message

    @property
    def digest(self) -> str:
        """The key of the plan; empty where figures were predicted for a given plan."""
        return self._answered.plan.digest

    @property
    def devices(self) -> int:
        """The number of devices that the plan uses."""
        return self._answered.plan.devices

    @property
    def tokens_per_s(self) -> float | None:
        """Predicted tokens a second of all devices together; None without a plan."""
        predicted = self._answered.plan.predicted
        return None if predicted is None else predicted.tokens_per_s

    @property
    def peak_memory_bytes(self) -> float | None:
        """Predicted memory of the fullest device; None without a plan."""
        predicted = self._answered.plan.predicted
        return None if predicted is None else predicted.peak_memory_bytes

    @property
    def predicted(self) -> dict[str, Any]:
        """Every predicted figure by name, as in a plan document; empty without a plan."""
        figures: dict[str, Any] | None = self.document["predicted"]
        return figures or {}

    @property
    def axes(self) -> dict[str, Any]:
        """The degrees by name: ``dp``, ``tp``, ``pp`` ...; empty without a plan, and where kinds of workers have their own."""
        degrees: dict[str, Any] | None = self.document["axes"]
        return degrees or {}

    @property
    def document(self) -> dict[str, Any]:
        """The ``meshwright.plan/1`` document, its request included: all that is known of the plan."""
        return answer_document(self._answered)

    def to_json(self) -> str:
        """Return the document as text."""
        return json_text(self.document)

    def save(self, path: FileName) -> None:
        """Write the document to a file, whole or not at all; raises PlanFileError when that can't be done."""
        write_output(Path(path), self.to_json() + "\n", what="plan")

    def page(self, *, full: bool = True) -> str:
        """Return the page that ``meshwright plan --full`` prints, or, not ``full``, what ``meshwright plan`` does."""
        from meshwright.app.base.console import page_console
        from meshwright.app.cli.pages.plan_page import NextStep, print_plan

        text = io.StringIO()
        print_plan(page_console(text), self._answered.plan, self._answered.request, NextStep("", None), full=full)
        return text.getvalue().rstrip() + "\n"

    def to_html(self) -> str:
        """Return the plan as one page of HTML, which needs no network and runs no script."""
        from meshwright.app.pictures.page import plan_page

        return plan_page(self._answered)

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks: its style touches nothing else there."""
        from meshwright.app.base.quoting import html_attribute

        return f'<iframe sandbox srcdoc="{html_attribute(self.to_html())}" style="width:100%;height:640px;border:0"></iframe>'

    def to_frame(self, rows: PlanRows = "stages") -> pd.DataFrame:
        """Return a table of the plan as a pandas data frame.

        stages       one row a pipeline stage; ``part`` tells whose, where the plan has several parts
        summary      one row, to lay beside those of other plans
        frontier     one row a plan of the frontier
        runners_up   one row a plan that lost, and why

        Fields are those of a plan document. Raises MissingExtraError without pandas.
        """
        if rows == "stages":
            return frame(stage_rows(self.document))
        if rows == "summary":
            return frame([_summary(self.document)])
        if rows in ("frontier", "runners_up"):
            return frame(self.document[rows])
        raise InvalidInputError("a plan has no such table", given=rows, allowed="stages, summary, frontier, runners_up")

    def __repr__(self) -> str:
        speed = "" if self.tokens_per_s is None else f", {self.tokens_per_s:,.0f} tokens/s"
        return f"<Plan: {self.status}, {self._answered.plan.model} on {self.devices} devices{speed}>"


@dataclass(frozen=True, repr=False, eq=False)
class Simulation:
    """A serving plan under the load of its request."""

    _simulated: ServingSimulation

    @property
    def keeps_targets(self) -> bool:
        """True if every target of the request is kept."""
        return not self._simulated.missed

    @property
    def missed(self) -> tuple[str, ...]:
        """The targets that are missed, by name: "p95_ttft", "p95_tpot"."""
        return self._simulated.missed

    @property
    def document(self) -> dict[str, Any]:
        """The ``meshwright.simulation/1`` document: percentiles, and queue and utilisation over time; times in seconds."""
        from meshwright.app.service.load import simulation_document

        return simulation_document(self._simulated)

    def to_frame(self) -> pd.DataFrame:
        """Return one row an interval of time: its end, requests that wait and decode, and the share of time that is busy.

        ``kind`` names the kind of workers, where there are several. Raises MissingExtraError without pandas.
        """
        return frame(interval_rows(self.document))

    def __repr__(self) -> str:
        verdict = "keeps its targets" if self.keeps_targets else f"misses {', '.join(self.missed)}"
        return f"<Simulation: {self._simulated.requests} requests, {verdict}>"


@dataclass(frozen=True, repr=False)
class Explanation:
    """The answer to a launch command that exists already."""

    _found: Explained

    @property
    def verdict(self) -> str:
        """The answer in a word: "runs", "misses", "does not fit" or "does not start"."""
        return self._found.verdict.value

    @property
    def problems(self) -> tuple[str, ...]:
        """The rules of the launcher that the command breaks."""
        return self._found.problems

    @property
    def request(self) -> Request:
        """The request that the command was measured against."""
        return Request(self._found.request)

    @property
    def plan(self) -> Plan | None:
        """The plan that the command stands for, with its figures; None where it does not start, or a server not fit."""
        plan = self._found.plan
        return None if plan is None else Plan(AnsweredRequest(plan, self._found.request))

    @property
    def better(self) -> Plan | None:
        """A better plan of the same launcher; None where none was found or looked for."""
        better = self._found.better
        return None if better is None else Plan(AnsweredRequest(better.plan, self._found.request))

    @property
    def document(self) -> dict[str, Any]:
        """The ``meshwright.explanation/1`` document, with every flag and what became of it."""
        from meshwright.app.service.explaining.explanation import explanation_document

        return explanation_document(self._found)

    def __repr__(self) -> str:
        return f"Explanation({self._found.launcher.value}: {self.verdict})"


@dataclass(frozen=True, repr=False)
class Launch:
    """The launch of a plan by a launcher."""

    _export: Export

    @property
    def launcher(self) -> str:
        """The launcher's name."""
        return self._export.launcher.value

    @property
    def command(self) -> str:
        """The command to run on every node, from the folder that holds ``files``."""
        return self._export.command

    @property
    def files(self) -> dict[str, str]:
        """The text of each file that the command reads, by name."""
        return dict(self._export.files)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the command."""
        return self._export.assumptions

    @property
    def inexpressible(self) -> tuple[str, ...]:
        """The parts of the plan that the launcher can't do, and what happens instead."""
        return self._export.inexpressible

    @property
    def document(self) -> dict[str, Any]:
        """The ``meshwright.export/1`` document."""
        from meshwright.app.launching.exporters.launch import export_document

        return export_document(self._export)

    def script(self) -> str:
        """Return a shell script that writes the files where it runs, and launches the plan."""
        from meshwright.app.launching.exporters.launch import script

        return script(self._export)

    def write(self, folder: FileName) -> tuple[Path, ...]:
        """Write the files and a script ``launch.sh`` into a folder, and return their paths; raises PlanFileError."""
        from meshwright.app.launching.exporters.launch import write_export

        return tuple(write_export(self._export, Path(folder)))

    def __repr__(self) -> str:
        return f"<Launch: {self.launcher} {self._export.version}>"


@dataclass(frozen=True, repr=False)
class Validation:
    """Predictions beside what was measured."""

    _report: TableReport

    @property
    def rows(self) -> int:
        """Rows of the table that could be predicted."""
        from meshwright.app.evidence.tables import predicted_rows

        return predicted_rows(self._report)

    @property
    def document(self) -> dict[str, Any]:
        """The document that ``meshwright validate --json`` prints."""
        from meshwright.app.evidence.tables import table_document

        return table_document(self._report)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a row of the table: the prediction and the measurement, or why there is no prediction.

        Raises MissingExtraError without pandas.
        """
        document = self.document
        return frame(document["runs"] if "runs" in document else document["points"])

    def __repr__(self) -> str:
        return f"<Validation: {self.rows} rows predicted>"


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name in _SUMMARY if (value := document[name]) is not None}
