"""The hardware catalogue: every file is a strict record, every figure has a source, and names resolve."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from benchmarks import hardware_page
from meshwright.costmodels import hardware
from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.kernel_file import borrowed_source, nearest_measured
from meshwright.costmodels.cluster.cluster import Device, Link
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.units import GIB, DType

DOCUMENTS = {
    folder: sorted(
        (entry for entry in files(hardware).joinpath(folder).iterdir() if entry.name.endswith(".json")),
        key=lambda entry: entry.name,
    )
    for folder in ("devices", "nodes")
}


@pytest.mark.parametrize("entry", DOCUMENTS["devices"], ids=lambda entry: entry.name)
def test_device_file_is_a_strict_record_with_a_source_for_every_figure(entry):
    document = json.loads(entry.read_text())
    assert entry.name == document["name"] + ".json"
    is_borrowed = document.pop("borrows", None) is not None
    del document["aliases"], document["generation"]
    TypeAdapter(Device).validate_json(json.dumps(document))
    figures = {"memory_bytes", "peak_flops", "memory_bytes_per_s", "host_bytes_per_s", "power_w", "idle_power_w"}
    if document["price_per_hour"] is not None:
        figures.add("price_per_hour")
    if is_borrowed:
        figures.add("borrows")
    assert figures <= document["sources"].keys()


@pytest.mark.parametrize("entry", DOCUMENTS["nodes"], ids=lambda entry: entry.name)
def test_node_file_is_a_strict_record_with_a_source_for_every_figure(entry):
    document = json.loads(entry.read_text())
    assert entry.name == document["name"] + ".json"
    for link in ("intra", "inter"):
        TypeAdapter(Link).validate_json(json.dumps(document[link]))
    assert {"intra", "intra.latency_s", "inter", "inter.latency_s", "host_memory_bytes"} <= document["sources"].keys()


def test_aliases_never_name_two_records():
    for entries in DOCUMENTS.values():
        names = [name for entry in entries for d in [json.loads(entry.read_text())] for name in (d["name"], *d["aliases"])]
        assert len(names) == len(set(names))


def test_alias_gives_the_record_of_the_full_name():
    assert hardware.device("h100") is hardware.device("h100-sxm-80gb")
    assert hardware.node_type("hgx-h100") is hardware.node_type("dgx-h100")


def test_unknown_name_says_what_exists():
    with pytest.raises(ClusterError, match="h100-sxm-80gb"):
        hardware.device("h1000")
    with pytest.raises(ClusterError, match="dgx-h100"):
        hardware.node_type("dgx")


@pytest.mark.parametrize(
    ("name", "flops", "gib", "bytes_per_s"),
    [
        ("a100-sxm-80gb", 312e12, 80, 2.039e12),
        ("h100-sxm-80gb", 989.4e12, 80, 3.352e12),
        ("h200-sxm-141gb", 989.4e12, 141, 4.8e12),
        ("b200-sxm-180gb", 2.25e15, 180, 8e12),
        ("mi300x-192gb", 1307.4e12, 192, 5.3e12),
        ("ascend-910b", 378.88e12, 60.97, 1.6e12),
        ("l40s", 362.05e12, 48, 864e9),
        ("rtx-4090", 165.2e12, 24, 1008e9),
        ("rtx-5090", 209.5e12, 32, 1792e9),
        ("h20", 148e12, 96, 4e12),
        ("gh200", 989.4e12, 96, 4e12),
        ("mi355x", 2516.6e12, 288, 8e12),
        ("gaudi-3", 1835e12, 128, 3.67e12),
        ("tpu-v5p", 459e12, 95, 2765e9),
        ("tpu-v7", 2307e12, 192, 7380e9),
        ("trn2", 667e12, 96, 2.9e12),
    ],
)
def test_figures_are_the_dense_ones_of_the_data_sheet(name, flops, gib, bytes_per_s):
    device = hardware.device(name)
    assert device.peak(DType.BF16) == flops
    assert device.memory_bytes_per_s == bytes_per_s
    assert 0.97 * gib * GIB < device.memory_bytes <= gib * GIB


def test_network_of_a_node_counts_all_its_cards_in_one_direction():
    assert hardware.node_type("dgx-h100").inter.bytes_per_s == 8 * 400e9 / 8
    assert hardware.node_type("dgx-a100").inter.bytes_per_s == 8 * 200e9 / 8
    assert hardware.node_type("p4d").inter.bytes_per_s == 400e9 / 8


def test_export_boards_have_the_silicon_of_their_sisters_and_slower_links():
    assert hardware.device("h800").peak_flops == hardware.device("h100").peak_flops
    assert hardware.node_type("hgx-h800").intra.bytes_per_s < hardware.node_type("dgx-h100").intra.bytes_per_s
    assert hardware.node_type("hgx-a800").intra.bytes_per_s < hardware.node_type("dgx-a100").intra.bytes_per_s


def test_rack_is_one_fast_domain():
    rack = hardware.node_type("gb200-nvl72")
    assert rack.devices_per_node == 72
    assert rack.intra.bytes_per_s == 900e9


@pytest.mark.parametrize("kind", ["kernels", "collectives", "serving"])
def test_every_device_has_a_calibration_of_each_kind_or_borrows_one(kind):
    shipped = {entry.name.removesuffix(".json") for entry in files(hardware).joinpath("calibrations", kind).iterdir()}
    calibrations = {device.calibration for device in hardware.devices()}
    borrowed = {name for name in calibrations if borrowed_source(name) is not None}
    assert calibrations - borrowed == shipped
    assert {borrowed_source(name) for name in borrowed} <= shipped
    assert not {calibration_key(name) for name in borrowed} & shipped


@pytest.mark.parametrize("entry", DOCUMENTS["devices"], ids=lambda entry: entry.name)
def test_device_that_claims_the_nearest_measured_device_has_it(entry):
    document = json.loads(entry.read_text())
    if "nearest measured device by data sheet" in document["sources"].get("borrows", ""):
        assert nearest_measured(hardware.device(document["name"])) == document["borrows"]


def test_page_of_the_hardware_is_the_catalogues():
    assert Path("docs/hardware.md").read_text(encoding="utf-8") == hardware_page.page()
