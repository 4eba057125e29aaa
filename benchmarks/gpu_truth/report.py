"""Predicted beside measured, as a document and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.gpu_truth.cases import Cases
from benchmarks.gpu_truth.isolated import Ended
from benchmarks.gpu_truth.prediction import CATALOGUE, MEASURED, PROFILES

SCHEMA = "meshwright.gpu-truth/1"

INTRODUCTION = (
    "Every prediction was made before its step was run, by the request that lies in `requests`: with the calibration of the",
    "curves that were measured just before (`calibration.json`), and with what ships for the catalogue's device. Nothing is",
    "fitted to a step. An error is predicted over measured, less one.",
)
TINY_SAYS = "Tiny sizes: this shows that the benchmark runs, and says nothing of the machine or of the predictions."


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one run. ``predicted`` is by basis; what is missing was not predicted or not measured, and ``why`` says so.

    within   whether the measured figure lies in the 90% band of the prediction with the measured calibration
    """

    run: str
    figure: str
    predicted: Mapping[str, float | None]
    measured: float | None
    within: bool | None
    why: str | None

    def error(self, basis: str) -> float | None:
        """Predicted over measured, less one."""
        predicted = self.predicted.get(basis)
        return None if predicted is None or not self.measured else predicted / self.measured - 1


def comparison(
    machine: Mapping[str, Any], cases: Cases, ended: Mapping[str, Ended], *, known: str | None, is_tiny: bool
) -> dict[str, Any]:
    """The whole document: machine, each step's end, each row with its errors, and the mean absolute errors."""
    rows = rows_of(cases, ended)
    return {
        "schema": SCHEMA,
        "machine": machine,
        "catalogue": known,
        "tiny": is_tiny,
        "steps": [asdict(each) for each in ended.values()],
        "rows": [asdict(row) | {"error": {basis: row.error(basis) for basis in (MEASURED, CATALOGUE)}} for row in rows],
        "mean_absolute_error": {
            figure: {basis: _mean_error(rows, figure, basis) for basis in (MEASURED, CATALOGUE)}
            for figure in dict.fromkeys(row.figure for row in rows)
        },
    }


def rows_of(cases: Cases, ended: Mapping[str, Ended]) -> list[Row]:
    """Every figure of every training step and serving point, whatever of it there is."""
    predicted = ended["predict"].results if "predict" in ended else {}
    found = []
    for case in cases.training:
        for mode in PROFILES:
            run = f"{case.name} {mode}"
            asked = {basis: answers["training"].get(run, {}) for basis, answers in predicted.items()}
            step = ended.get(training_step(case.name, mode))
            given = step.results if step else {}
            found.append(_row(run, "step_time_s", asked, given.get("step_time_s"), step, band=("low_s", "high_s")))
            found.append(_row(run, "allocator_bytes", asked, given.get("reserved_bytes"), step))
    for mode in PROFILES:
        step = ended.get(serving_step(mode))
        for point in cases.serving:
            asked = {basis: answers["serving"].get(point.name, {}) for basis, answers in predicted.items()}
            given = step.results.get(point.name, {}) if step else {}
            for figure, measured in (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("allocator_bytes", "reserved_bytes")):
                found.append(_row(f"serving {point.name} {mode}", figure, asked, given.get(measured), step))
    return found


def training_step(case: str, mode: str) -> str:
    """The name of the step that runs a training case."""
    return f"train-{case}-{mode}"


def serving_step(mode: str) -> str:
    """The name of the step that runs the serving points."""
    return f"serve-{mode}"


def _row(
    run: str,
    figure: str,
    asked: Mapping[str, Mapping[str, Any]],
    measured: float | None,
    step: Ended | None,
    *,
    band: tuple[str, str] | None = None,
) -> Row:
    best = asked.get(MEASURED, {})
    low, high = (best.get(end) for end in band) if band else (None, None)
    within = None if measured is None or low is None or high is None else low <= measured <= high
    why = [f"{basis}: {answer['refused']}" for basis, answer in asked.items() if "refused" in answer]
    if measured is None:
        counted = "PyTorch does not count memory on a CPU" if step and step.results else None
        why.append("not measured: " + (step.error or counted or "no result" if step else "not run yet"))
    predicted = {basis: answer.get(figure) for basis, answer in asked.items()}
    return Row(run, figure, predicted, measured, within, "; ".join(why) or None)


def _mean_error(rows: Sequence[Row], figure: str, basis: str) -> float | None:
    errors = [row.error(basis) for row in rows if row.figure == figure]
    known = [abs(error) for error in errors if error is not None]
    return fmean(known) if known else None


def page(document: Mapping[str, Any]) -> str:
    """The comparison as Markdown."""
    machine = document["machine"]
    lines = ["# Predicted against measured on one device", "", *INTRODUCTION, ""]
    if document["tiny"]:
        lines += [TINY_SAYS, ""]
    cuda = f", CUDA {machine['cuda']}" if machine.get("cuda") else ""
    lines += [
        f"Machine: {machine.get('name', 'not known')}, {machine.get('memory_bytes', 0) / 2**30:.1f} GiB, "
        f"{machine.get('precision')}, PyTorch {machine.get('torch')}{cuda}. "
        f"In the catalogue: {document['catalogue'] or 'no; predicted with the measured calibration alone'}.",
        "",
        *_times(document["rows"]),
        "",
        *_memory(document["rows"]),
        "",
        "| figure | mean absolute error, measured calibration | catalogue |",
        "|---|---|---|",
    ]
    for figure, errors in document["mean_absolute_error"].items():
        lines.append(f"| {figure} | {_share(errors[MEASURED], '.1%')} | {_share(errors[CATALOGUE], '.1%')} |")
    lines += ["", "## Steps", "", "| step | end | seconds | |", "|---|---|---|---|"]
    for step in document["steps"]:
        lines.append(f"| {step['name']} | {step['status']} | {step['seconds']:.1f} | {_cell(step['error'])} |")
    return "\n".join([*lines, ""])


def _times(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| run | figure | measured | predicted, measured calibration | error | in its 90% band | by the catalogue | error | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["figure"].endswith("_s"):
            within = {None: "", True: "yes", False: "no"}[row["within"]]
            cells = [row["run"], row["figure"].removesuffix("_s"), _ms(row["measured"])]
            cells += [_ms(row["predicted"].get(MEASURED)), _share(row["error"][MEASURED]), within]
            cells += [_ms(row["predicted"].get(CATALOGUE)), _share(row["error"][CATALOGUE]), _cell(row["why"])]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Memory: the predicted median, without what the process takes beside PyTorch's allocator, against the most that it",
        "reserved; serving: weights, transients and the clients' caches.",
        "",
        "| run | reserved | predicted | error |",
        "|---|---|---|---|",
    ]
    for row in rows:
        if row["figure"] == "allocator_bytes":
            basis = MEASURED if row["predicted"].get(MEASURED) is not None else CATALOGUE
            cells = [row["run"], _gib(row["measured"]), _gib(row["predicted"].get(basis)), _share(row["error"][basis])]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _share(error: float | None, form: str = "+.1%") -> str:
    return "" if error is None else format(error, form)


def _cell(text: str | None) -> str:
    """A text that stays in its cell of a table."""
    return " ".join((text or "").replace("|", "/").split())[:200]
