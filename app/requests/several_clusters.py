"""Several clusters of one question: those that words name, the usual nodes of the catalogue, and the table of their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.app.base.figures import percent, seconds, significant
from meshwright.app.base.plan_words import days, mean_output, run_s, run_usd
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.hardware_words import LONGEST_NAME, usual_node
from meshwright.costmodels.calibration.kernel_file import borrowed_source
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.hardware import devices
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher, Objective
from meshwright.solver.problem.request import ServingRequest

NODES = (1, 2, 4, 8)
"""Numbers of nodes of a node type that are asked one after another: each doubles what the last one had."""

_THOUSANDS = r"(?<![A-Za-z0-9-])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9])"


def clusters_in(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> tuple[str, ...]:
    """Return the words of each cluster of a list with commas, once each and in its order; words of one cluster are alone.

    A comma parts clusters only where each part is a cluster by itself: "2 nodes, 8x A100 40GB each" is one, and so is what "+"
    joins. ``own`` are a user's node types under their names and their devices'.

    Raises ClusterError for words with a comma that are neither clusters nor one cluster.
    """
    whole = re.sub(_THOUSANDS, lambda number: number[1].replace(",", ""), text)
    said = [part.strip() for part in whole.split(",") if part.strip()]
    if len(said) < 2:
        return (text,)
    parts = tuple(dict.fromkeys(said))
    strange = [part for part in parts if not _is_cluster(part, own)]
    if not strange:
        return parts
    if len(strange) < len(parts):
        try:
            cluster_of_words(text, own)
        except InvalidInputError as error:
            raise ClusterError(
                error.problem,
                given=error.given,
                allowed=error.allowed,
                remedy=f"{error.remedy or 'say another cluster'}. Commas part clusters where each part is one by itself, and "
                f"{strange[0][:LONGEST_NAME]!r} is none",
            ) from None
    return (text,)


def _is_cluster(words: str, own: Mapping[str, NodeType]) -> bool:
    try:
        cluster_of_words(words, own)
    except InvalidInputError:
        return False
    return True


def usual_nodes() -> tuple[NodeType, ...]:
    """Return the usual node of each device that has a price or a calibration measured on it, the cheapest by the hour first.

    Those without a price come last, by name.
    """
    nodes = [usual_node(each) for each in devices() if each.price_per_hour or borrowed_source(each.calibration) is None]
    return tuple(sorted((node for node in nodes if node is not None), key=_by_price))


def _by_price(node: NodeType) -> tuple[bool, float, str]:
    per_hour = node.devices_per_node * (node.device.price_per_hour or 0.0)
    return (not per_hour, per_hour, node.name)


# The table of answers, one document.

CLUSTERS_SCHEMA = "meshwright.clusters/1"
"""The document of a question asked of several clusters."""

_OF_A_PLAN = ("digest", "feasible", "devices", "predicted", "certificate", "reason")
"""Fields of a plan document that a row of this one has."""


def cluster_row(words: str, plan: Mapping[str, Any], launcher: Launcher | None) -> dict[str, Any]:
    """Return the row of a cluster that has the document of a plan; figures that are not known are null."""
    said, predicted = {name: plan.get(name) for name in _OF_A_PLAN}, plan.get("predicted")
    price = None if predicted is None else usd_per_hour(predicted["cost_per_million_tokens"], predicted["tokens_per_s"])
    return {"cluster": words, **said, "launcher": launcher, "usd_per_hour": price, "refused": None}


def row_without_plan(words: str, refused: str | None = None) -> dict[str, Any]:
    """Return the row of a cluster of which the question can't be asked, with why; or of one that is not answered yet."""
    said: dict[str, Any] = dict.fromkeys(_OF_A_PLAN) | {"feasible": None if refused is None else False}
    return {"cluster": words, **said, "launcher": None, "usd_per_hour": None, "refused": refused}


def usd_per_hour(cost_per_million_tokens: float | None, tokens_per_s: float) -> float | None:
    """Return the price of the devices that a plan uses; None where a device has no price."""
    return None if cost_per_million_tokens is None else cost_per_million_tokens * tokens_per_s * 3600.0 / 1e6


def row_rank(row: Mapping[str, Any]) -> tuple[bool, bool, float, str]:
    """The place of a row: the best objective first, ties by words; then clusters that are not answered, then those without a
    plan."""
    objective = row["certificate"]["objective"] if row["feasible"] else 0.0
    return (not row["feasible"], row["feasible"] is not None, objective, row["cluster"])


def clusters_document(rows: Iterable[Mapping[str, Any]], not_tried: Sequence[str] = ()) -> dict[str, Any]:
    """Return rows, the best first, and the words of clusters for which no time was left, as one document."""
    return {"schema": CLUSTERS_SCHEMA, "clusters": sorted(rows, key=row_rank), "not_tried": list(not_tried)}


# The figures of a plan that people compare clusters by.


@dataclass(frozen=True, slots=True)
class ClusterFigure:
    """A figure of a plan in a table of clusters: its title, its value where a plan has it, and the words of a value."""

    title: str
    value: Callable[[AnsweredRequest], float | None]
    text: Callable[[float], str]

    def words(self, answer: AnsweredRequest) -> str:
        """The figure of a plan in words; a dash where it has none."""
        value = self.value(answer)
        return "-" if value is None else self.text(value)


def _of_predicted(name: str) -> Callable[[AnsweredRequest], float | None]:
    return lambda answer: None if answer.plan.predicted is None else getattr(answer.plan.predicted, name)


def _trained_tokens_per_s(answer: AnsweredRequest) -> float | None:
    predicted = answer.plan.predicted
    return None if predicted is None or predicted.step_time_s is None else predicted.tokens_per_s


def _requests_per_s(answer: AnsweredRequest) -> float | None:
    if answer.plan.predicted is None or not isinstance(answer.request, ServingRequest):
        return None
    return answer.plan.predicted.tokens_per_s / mean_output(answer.request.workload)


def _usd_per_hour(answer: AnsweredRequest) -> float | None:
    predicted = answer.plan.predicted
    return None if predicted is None else usd_per_hour(predicted.cost_per_million_tokens, predicted.tokens_per_s)


def _cost_per_million_tokens(answer: AnsweredRequest) -> float | None:
    """USD, but of a whole run, which has a column of its own."""
    predicted = answer.plan.predicted
    if predicted is None or run_s(answer.plan, answer.request) is not None:
        return None
    return predicted.cost_per_million_tokens


def _joules(answer: AnsweredRequest) -> float | None:
    return answer.plan.certificate.objective if answer.request.objective is Objective.ENERGY else None


_FIGURES = (
    ClusterFigure("devices", lambda answer: answer.plan.devices, lambda devices: f"{devices:,.0f}"),
    ClusterFigure("tokens/s", _trained_tokens_per_s, significant),
    ClusterFigure("req/s", _requests_per_s, significant),
    ClusterFigure("step", _of_predicted("step_time_s"), seconds),
    ClusterFigure("TTFT", _of_predicted("ttft_p95_s"), seconds),
    ClusterFigure("TPOT", _of_predicted("tpot_p95_s"), seconds),
    ClusterFigure("OOM", _of_predicted("chance_out_of_memory"), percent),
    ClusterFigure("J", _joules, significant),
    ClusterFigure("USD/h", _usd_per_hour, significant),
    ClusterFigure("USD/M tok", _cost_per_million_tokens, significant),
    ClusterFigure("run", lambda answer: run_s(answer.plan, answer.request), days),
    ClusterFigure("USD", lambda answer: run_usd(answer.plan, answer.request), significant),
    ClusterFigure("gap", lambda answer: answer.plan.certificate.gap, percent),
)


def known_figures(answers: Sequence[AnsweredRequest]) -> list[ClusterFigure]:
    """Return the figures that some of these plans have."""
    return [figure for figure in _FIGURES if any(figure.value(answer) is not None for answer in answers)]
