"""Scores of left-out sources as Markdown tables."""

from __future__ import annotations

from benchmarks.held_out.leave_one_out import Banded, LeftOut
from meshwright.app.base.figures import percent
from meshwright.app.base.quoting import markdown_text
from meshwright.app.evidence.training.prediction import LINKS, Constants, silicon_name
from meshwright.app.evidence.training.rows import Quality
from meshwright.app.evidence.training.scores import SourceScore
from meshwright.costmodels.hardware import devices
from meshwright.solver.training.report.bands import ASSUMED_FRAMEWORK, KNOWN_FRAMEWORK, StepErrorModel

NOTHING = "–"

ROWS_THAT_TELL = 20
"""Rows of a source from which its share inside bands says something."""


def left_out_tables(found: LeftOut) -> str:
    """The headline, and by source errors, shares inside bands and the order of plans."""
    return "\n\n".join((_headline(found), _sources(found), _memory(found)))


def band_table(found: LeftOut) -> str:
    """The error models of whole steps that plans print, in Markdown, with what bands found in the same way hold of sources that
    they have not seen."""
    lines = [
        "| framework | base | small layers | communication | experts | network | chip | below | above | inside, all rows | "
        "least of a source |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, model, banded in (("stated", KNOWN_FRAMEWORK, found.known), ("assumed", ASSUMED_FRAMEWORK, found.assumed)):
        cells = (name, error_model_cells(model), percent(banded.coverage), _least(banded))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def error_model_cells(model: StepErrorModel) -> str:
    """The figures of an error model as cells of a row."""
    figures = (model.base, model.small, model.communication, model.experts, model.network, model.chip, model.below, model.above)
    return " | ".join(f"{figure:.3f}" for figure in figures)


def constants_table(constants: Constants) -> str:
    """The constants of the fit to all sources, in Markdown, and beside each rate of a chip the one that its devices ship."""
    shipped: dict[str, set[str]] = {}
    for device in devices():
        for name in ("matrix", "low_precision_matrix", "memory"):
            rate = getattr(device.sustained, name)
            shipped.setdefault(f"{name} {silicon_name(device)}", set()).add(f"{rate:.2f}")
    lines = ["| constant | of | rate | ships |", "|---|---|---:|---:|"]
    for constant, owner, rate in constants.listed():
        ships = NOTHING if constant in LINKS else ", ".join(sorted(shipped[f"{constant.value} {owner}"]))
        lines.append(f"| {constant.value} | {markdown_text(owner)} | {rate:.2f} | {ships} |")
    return "\n".join(lines)


def _headline(found: LeftOut) -> str:
    report = found.report
    known = [report.coverage[quality] for quality in (Quality.A, Quality.B) if quality in report.coverage]
    rows, predicted = sum(n for n, _ in known), sum(n for _, n in known)
    figures = (
        ("Time, mean over sources", _exact(report.mean_time_mape), "at most 12%"),
        ("Memory, mean over sources", _exact(report.mean_memory_mape), "at most 8%"),
        ("Rows of quality A and B that are predicted", _exact(predicted / rows), "at least 95%"),
        ("Rows inside their 90% band", _exact(found.known.coverage), "86 to 94%"),
        (f"The same of the worst source of {ROWS_THAT_TELL} rows or more", _least(found.known), "at least 75%"),
    )
    lines = ["| figure | left out by source | target |", "|---|---:|---:|", *(f"| {' | '.join(line)} |" for line in figures)]
    return "\n".join(lines)


def _sources(found: LeftOut) -> str:
    lines = [
        "| source | rows | predicted | timed | time MAPE | median | bias | inside the band | Spearman | mean regret |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_source(score, found.known) for score in found.report.sources]
    return "\n".join(lines)


def _source(score: SourceScore, banded: Banded) -> str:
    cells = [markdown_text(score.source), f"{score.rows:,}", f"{score.predicted:,}"]
    if score.time is None:
        cells += [NOTHING] * 5
    else:
        rows, inside = banded.covered[score.source]
        time = score.time
        cells += [f"{time.n:,}", percent(time.mape), percent(time.median), f"{time.bias:+.0%}", percent(inside / rows)]
    order = score.ranking
    cells += [NOTHING, NOTHING] if order is None else [f"{order.spearman:.2f}", percent(order.mean_regret)]
    return f"| {' | '.join(cells)} |"


def _memory(found: LeftOut) -> str:
    lines = [
        "| source | with memory | memory MAPE | bias | labelled rows | ran out | fit rightly said | foreseen | false alarms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for score in found.report.sources:
        memory, fit = score.memory, score.fit
        if memory is None and fit is None:
            continue
        cells = [NOTHING] * 3 if memory is None else [f"{memory.n:,}", percent(memory.mape), f"{memory.bias:+.0%}"]
        if fit is None:
            cells += [NOTHING] * 5
        else:
            shares = percent(fit.accuracy), percent(fit.recall)
            cells += [f"{fit.n:,}", f"{fit.n_out_of_memory:,}", *shares, f"{fit.false_alarms:,}"]
        lines.append(f"| {' | '.join((markdown_text(score.source), *cells))} |")
    return "\n".join(lines)


def _least(banded: Banded) -> str:
    source, share = banded.least(ROWS_THAT_TELL)
    return f"{percent(share)} ({markdown_text(source)})"


def _exact(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
