"""Measured figures in words: what is read, and what is refused."""

from __future__ import annotations

import pytest

from meshwright.app.service.explaining.measured import Metric, Unit, read_measured
from meshwright.costmodels.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "value", "unit", "metric", "each"),
    [
        ("840tok/s", 840.0, Unit.TOKENS_PER_S, Metric.TOKENS, False),
        ("840 tokens/s/gpu", 840.0, Unit.TOKENS_PER_S, Metric.TOKENS, True),
        ("2,142 tokens/s a GPU", 2142.0, Unit.TOKENS_PER_S, Metric.TOKENS, True),
        ("840 tok/sec per device", 840.0, Unit.TOKENS_PER_S, Metric.TOKENS, True),
        ("26.9ktok/s", 26900.0, Unit.TOKENS_PER_S, Metric.TOKENS, False),
        ("9.2s", 9.2, Unit.SECONDS, None, False),
        ("step time 9200 ms", 9.2, Unit.SECONDS, Metric.STEP_TIME, False),
        ("1.5 s/it", 1.5, Unit.SECONDS, None, False),
        ("23%", 0.23, Unit.SHARE, Metric.MFU, False),
        ("MFU 23%", 0.23, Unit.SHARE, Metric.MFU, False),
        ("160TFLOPS/gpu", 160.0, Unit.TFLOPS, Metric.MFU, True),
        ("12.5 samples/s", 12.5, Unit.SEQUENCES_PER_S, Metric.TOKENS, False),
        ("TTFT 1.2s", 1.2, Unit.SECONDS, Metric.TTFT, False),
        ("tpot 35ms", 0.035, Unit.SECONDS, Metric.TPOT, False),
        ("itl 35ms", 0.035, Unit.SECONDS, Metric.TPOT, False),
    ],
)
def test_a_figure_is_read(text: str, value: float, unit: Unit, metric: Metric | None, each: bool) -> None:
    (figure,) = read_measured((text,))
    assert (figure.text, figure.unit, figure.metric, figure.each) == (text, unit, metric, each)
    assert figure.value == pytest.approx(value)


def test_several_figures_are_read_of_one_word_or_of_many() -> None:
    assert read_measured(("ttft 1.2s, tpot 35ms",)) == read_measured(("ttft 1.2s", "tpot 35ms"))
    assert [figure.value for figure in read_measured(("2,142tok/s, tpot 35ms",))] == [2142.0, 0.035]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "840",
        "tok/s",
        "ttft 840tok/s",
        "mfu 9s",
        "9.2s/gpu",
        "speed 9s",
        "0s",
        "120%",
        "9s,",
        "1e400s",
        "-3s",
        "9s x",
    ],
)
def test_other_words_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError) as told:
        read_measured((text,))
    assert told.value.allowed


def test_long_words_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="too long"):
        read_measured(("9s, " * 100,))
    with pytest.raises(InvalidInputError, match="too many"):
        read_measured(("1s,2s,3s,4s,5s,6s",))
