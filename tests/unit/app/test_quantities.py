"""Quantities with units, as options and as fields of a request."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.base.figures import (
    BANDWIDTH,
    COMPUTE,
    DURATION,
    MILLISECONDS,
    NETWORK_CARD,
    RATE,
    SIZE,
    Quantity,
    read_count,
    read_quantity,
    read_tokens,
)
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.resolve import NoFiles, quantity_of_field, request_document, resolve_request
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.request import Slo
from tests.support.requests_given import tiny_graph

READ = [
    ("24GiB", SIZE, 24 * 2**30),
    ("80 GB", SIZE, 80e9),
    ("0.1GB", SIZE, 1e8),
    ("24gb", SIZE, 24e9),
    ("400Gb/s", BANDWIDTH, 50e9),
    ("3.2Tbps", BANDWIDTH, 400e9),
    ("50GB/s", BANDWIDTH, 50e9),
    ("400G", NETWORK_CARD, 50e9),
    ("400Gb", NETWORK_CARD, 50e9),
    ("1.5s", DURATION, 1.5),
    ("40 ms", DURATION, 0.04),
    ("40ms", MILLISECONDS, 40),
    ("1.1ms", MILLISECONDS, 1.1),
    ("2min", DURATION, 120),
    ("102e9", COMPUTE, 102e9),
    ("989TFLOPS", COMPUTE, 989e12),
    ("4", RATE, 4),
    ("4/s", RATE, 4),
    ("240/min", RATE, 4),
    ("1_000 rps", RATE, 1000),
]
REFUSED = [
    ("1", DURATION, "write the unit after the number"),
    ("1 sek", DURATION, "did you mean 'sec'?"),
    ("3gb/s", BANDWIDTH, "capital B for bytes"),
    ("400Gb", SIZE, None),
    ("24 gigs", SIZE, "24GiB or 80GB"),
    ("-4", RATE, "a number and a unit"),
    ("nan", RATE, "a number and a unit"),
    ("1e999", COMPUTE, "no finite"),
    ("", SIZE, "a number and a unit"),
    ("9" * 5000, RATE, "a number and a unit"),
]


@pytest.mark.parametrize(("text", "kind", "value"), READ)
def test_a_quantity_is_read(text: str, kind: Quantity, value: float) -> None:
    assert read_quantity(text, kind, what="it") == value


@pytest.mark.parametrize(("text", "kind", "hint"), [case for case in REFUSED if case[2]])
def test_a_wrong_quantity_is_answered(text: str, kind: Quantity, hint: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_quantity(text, kind, what="the target")
    assert "the target" in str(refused.value) and hint in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_count_is_whole_and_a_k_is_asked_about() -> None:
    assert read_count("8_192", what="it") == 8192
    with pytest.raises(InvalidInputError, match="write 8192 or 8000"):
        read_count("8k", what="it")
    for text in ("0", "1.5", "-1", "1e-3", "1.5e0", "1.25e1", "1e19", "9e99", "1e", "e3", "inf", "nan", ""):
        with pytest.raises(InvalidInputError, match="a whole number from 1"):
            read_count(text, what="it")


@pytest.mark.parametrize(("text", "tokens"), [("8k", 8192), ("128K", 131_072), ("1 k", 1024), ("2000", 2000), ("1e3", 1000)])
def test_tokens_may_be_counted_in_k(text: str, tokens: int) -> None:
    assert read_tokens(text, what="--isl") == tokens


def test_tokens_of_a_line_alone_take_a_k() -> None:
    served = OneLine("qwen3-8b", gpus="1xH100", isl="8k", osl="1k", rate="1")
    workload = request_of_line(served)["workload"]
    assert (workload["prompt_tokens"], workload["output_tokens"]) == ({"fixed": 8192}, {"fixed": 1024})
    with pytest.raises(InvalidInputError, match="--batch is no whole number"):
        request_of_line(OneLine("qwen3-8b", gpus="8xH100", batch="1k", seq="4k"))


@pytest.mark.parametrize("text", ["0k", "k", "1.5k", "8kb", "9999999k"])
def test_a_wrong_number_of_tokens_is_answered(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--isl is no whole number"):
        read_tokens(text, what="--isl")


@pytest.mark.parametrize(
    ("text", "count"),
    [("3e9", 3_000_000_000), ("4E10", 4 * 10**10), ("1.5e8", 150_000_000), ("1.50e+1", 15), ("1e0", 1), ("9e18", 9 * 10**18)],
)
def test_a_count_may_be_written_with_a_power_of_ten(text: str, count: int) -> None:
    assert read_count(text, what="it") == count


def served(**changed: Any) -> dict[str, Any]:
    node = {
        "name": "own",
        "device": {
            "name": "own-device",
            "memory_bytes": 24 * 2**30,
            "peak_flops": {"bf16": 165e12},
            "memory_bytes_per_s": 1e12,
            "calibration": "l4",
        },
        "devices_per_node": 4,
        "intra": {"name": "pcie", "bytes_per_s": 25e9, "latency_s": 1e-6},
        "inter": {"name": "ethernet", "bytes_per_s": 3.125e9, "latency_s": 20e-6},
    }
    return {
        "schema": "meshwright.request/1",
        "model": {"graph": tiny_graph()},
        "cluster": {"groups": [{"name": "own", "node": node, "nodes": 1}]},
        "workload": {
            "kind": "serving",
            "arrivals": {"process": "poisson", "requests_per_s": 4},
            "prompt_tokens": {"fixed": 100},
            "output_tokens": {"fixed": 10},
        },
        "slo": {"p95_ttft_ms": 1000, "p95_tpot_ms": 40},
    }


def with_units() -> dict[str, Any]:
    document = served()
    node = document["cluster"]["groups"][0]["node"]
    node["device"] |= {"memory_bytes": "24GiB", "peak_flops": {"bf16": "165TFLOPS"}, "memory_bytes_per_s": "1TB/s"}
    node["intra"] |= {"bytes_per_s": "25GB/s", "latency_s": "1us"}
    node["inter"] |= {"bytes_per_s": "25Gb/s", "latency_s": "20us"}
    document["workload"]["arrivals"]["requests_per_s"] = "240/min"
    document["slo"] = {"p95_ttft_ms": "1s", "p95_tpot_ms": "40ms"}
    return document


def test_fields_of_a_request_take_units() -> None:
    given, said = (resolve_request(each, files=NoFiles()) for each in (served(), with_units()))
    assert request_document(said) == request_document(given)


def test_every_wrong_unit_of_a_request_is_named_at_its_field() -> None:
    document = with_units()
    document["slo"] = {"p95_ttft_ms": "1 sek", "p95_tpot_ms": "40GB"}
    with pytest.raises(DocumentError) as refused:
        resolve_request(document, files=NoFiles())
    assert [fault.field for fault in refused.value.fields] == ["slo.p95_ttft_ms", "slo.p95_tpot_ms"]
    assert refused.value.fields[0].remedy == "did you mean 'sec'?"


def test_a_number_in_quotes_stays_refused() -> None:
    document = served() | {"slo": {"p95_ttft_ms": "1000"}}
    with pytest.raises(DocumentError, match=r"slo\.p95_ttft_ms"):
        resolve_request(document, files=NoFiles())


def test_every_target_of_an_slo_takes_units() -> None:
    """The end of a field's name says its unit: a target that someone adds under another name shows here."""
    targets = [field.name for field in dataclasses.fields(Slo) if field.name != "confidence"]
    assert all(quantity_of_field(name) is not None for name in targets)
    assert quantity_of_field("host_memory_bytes") is SIZE
    assert "host_memory_bytes" in get_type_hints(NodeType)
