"""Money and error bands of what a plan predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.numbers import agrees
from meshwright.solver.verify.rules.devices import devices_by_group
from meshwright.solver.verify.violation import Rule, Violation

_S_PER_HOUR = 3600.0


def cost_violations(
    predicted: Predicted | None, request: PlanRequest, used: Iterable[tuple[Sequence[Stage], int]]
) -> Iterator[Violation]:
    """Price of the devices in use over the tokens they make; none where a price is unknown. ``used`` are stages, and how many
    devices they and those like them have."""
    assert predicted is not None, "answer_violations asks for it"
    claimed = predicted.cost_per_million_tokens
    if claimed is None:
        return
    per_hour = 0.0
    for stages, devices in used:
        groups = devices_by_group(request.cluster, (listed for stage in stages for listed in stage.devices))
        prices = [group.node.device.price_per_hour for group, _ in groups]
        if any(price is None for price in prices):
            yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", "a device in use has no known price")
            return
        # A serving plan may list the devices of one replica; the others are like it.
        copies = devices / sum(count for _, count in groups)
        per_hour += copies * sum(count * (price or 0.0) for (_, count), price in zip(groups, prices, strict=True))
    expected = per_hour / _S_PER_HOUR / predicted.tokens_per_s * 1e6
    if not agrees(claimed, expected):
        yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", f"{claimed}, prices make {expected}")


def band_violations(predicted: Predicted | None) -> Iterator[Violation]:
    """A band has its low end below its high end."""
    assert predicted is not None, "answer_violations asks for it"
    for name, band in predicted.bands.items():
        if band.low > band.high:
            yield Violation(Rule.BANDS, f"plan.predicted.bands.{name}", f"low {band.low} is above high {band.high}")
