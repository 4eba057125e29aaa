"""Clusters in the forms that reports, scripts and offers have: counts, cards, words and networks in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.app.requests.cloud_machines import cloud_machines
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.hardware import devices_by_name, node_types, node_types_by_name

CARDS = {
    "H100": "h100-sxm-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "H100 SXM5": "h100-sxm-80gb",
    "A100-80GB": "a100-sxm-80gb",
    "A100 SXM4 40GB": "a100-sxm-40gb",
    "H200": "h200-sxm-141gb",
    "B200": "b200-sxm-180gb",
    "MI300X": "mi300x-192gb",
    "AMD Instinct MI308X": "mi308x-192gb",
    "H20-3e": "h20-141gb",
    "H20 96G": "h20-96gb",
    "L40": "l40-48gb",
    "L40S": "l40s-48gb",
    "GeForce RTX 3090": "rtx-3090-24gb",
    "RTX4090": "rtx-4090-24gb",
    "A800 80G": "a800-sxm-80gb",
    "Gaudi2": "gaudi-2-96gb",
    "H100 PCIe": "h100-pcie-80gb",
    "H200 NVL": "h200-nvl-141gb",
}
NETWORKS = {
    "": (None, None),
    " over InfiniBand 8x400G": (3200, "infiniband"),
    ", 400G InfiniBand": (400, "infiniband"),
    ", InfiniBand HDR 200Gb": (200, "infiniband"),
    " with RoCE v2 8x200Gb": (1600, "roce"),
    " over 100GbE": (100, "ethernet"),
    ", EFA 3200 Gbps": (3200, "efa"),
    " @ 25Gb Ethernet": (25, "ethernet"),
    " 3.2Tb/s": (3200, None),
    "@400Gb": (400, None),
}
ONE_NODE = (
    *("{d}x{card}", "{d} x {card}", "{d} {card}", "{d}*{card}", "{d}×{card}", "{card} x{d}", "{card} x {d}", "{card}:{d}"),
    *(
        "1x{d}x{card}",
        "{d}-way {card}",
        "{card} {d}-way",
        "{d} GPUs {card}",
        "a node of {d} {card}",
        "one node with {d}x {card}",
    ),
    *(
        "single node, {d}x {card}",
        "1 node x {d} {card}",
        "{d}卡{card}",
        "1 server: {d} {card} GPUs",
        "{d}x {card} in one machine",
    ),
)
SEVERAL_NODES = (
    *("{n}x{d}x{card}", "{n} nodes x {d} {card}", "{n} nodes x {d}x {card}", "{n} nodes of {d} {card}", "{n}x({d}x{card})"),
    *(
        "{n} nodes, {d}x {card} each",
        "{n} nodes with {d} {card} per node",
        "{all} {card} ({d} per node)",
        "{n} {d}x{card} nodes",
    ),
    *(
        "{all} GPUs ({n} nodes x {d} {card})",
        "{n} servers, each with {d} {card}",
        "{all}x {card}, {n} nodes, {d} GPUs per node",
    ),
    *("{all} {card} across {n} nodes", "{d}x{card} x {n} nodes", "{n}台每台{d}卡{card}", "{all} {card} GPUs, {d}/node"),
)


def meaning(words: str) -> tuple[int, int, set[str]]:
    """Devices, nodes and the names of the devices."""
    cluster = cluster_of_words(words)
    return cluster.n_devices, sum(group.nodes for group in cluster.groups), devices_of(cluster)


def devices_of(cluster: Cluster) -> set[str]:
    return {group.node.device.name for group in cluster.groups}


def drawn(seed: int) -> Iterator[tuple[str, int, int, str, tuple[int | None, str | None]]]:
    draw = random.Random(seed)
    for _ in range(60):
        card, devices = draw.choice(list(CARDS)), draw.choice((1, 2, 3, 4, 6, 8))
        nodes = draw.choice((1, 2, 3, 4, 16))
        form = draw.choice(ONE_NODE if nodes == 1 else SEVERAL_NODES)
        network = draw.choice(list(NETWORKS))
        yield (
            form.format(n=nodes, d=devices, all=nodes * devices, card=card) + network,
            nodes,
            devices,
            CARDS[card],
            NETWORKS[network],
        )


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(20))
def test_forms_of_count_card_and_network_mean_what_they_say(seed: int) -> None:
    for words, nodes, devices, card, (gbit_per_s, kind) in drawn(seed):
        assert meaning(words) == (nodes * devices, nodes, {card}), words
        (group,) = cluster_of_words(words).groups
        if gbit_per_s is not None:
            assert group.node.inter.bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8), words
        if kind is not None:
            assert group.node.network == kind, words


@pytest.mark.parametrize(
    ("words", "devices", "nodes", "card"),
    [
        ("64 GPUs H100", 64, 8, "h100-sxm-80gb"),
        ("two DGX H100", 16, 2, "h100-sxm-80gb"),
        ("HGX H100 80GB", 8, 1, "h100-sxm-80gb"),
        ("DGX A100 40GB x 2", 16, 2, "a100-sxm-40gb"),
        ("2 DGX H100 (16 H100 GPUs)", 16, 2, "h100-sxm-80gb"),
        ("4 GPUs of a DGX H100", 4, 1, "h100-sxm-80gb"),
        ("16 DGX A100 nodes", 128, 16, "a100-sxm-80gb"),
        ("4x A100 SXM4 80GB NVLink", 4, 1, "a100-sxm-80gb"),
        ("8x A100 80GB, 4 nodes, NVLink, 200G InfiniBand", 32, 4, "a100-sxm-80gb"),
        ("two 8-GPU H100 nodes", 16, 2, "h100-sxm-80gb"),
        ("a single A100", 1, 1, "a100-sxm-80gb"),
        ("a single 4090", 1, 1, "rtx-4090-24gb"),
        ("dual RTX 3090", 2, 1, "rtx-3090-24gb"),
        ("pair of RTX A6000s", 2, 1, "rtx-a6000-48gb"),
        ("8x RTX A6000", 8, 1, "rtx-a6000-48gb"),
        ("NVIDIA A100-SXM4-80GB", 1, 1, "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", 1, 1, "a100-pcie-40gb"),
        ("4x A100 40GB PCIe", 4, 1, "a100-pcie-40gb"),
        ("PCIe A100 80GB x 4", 4, 1, "a100-pcie-80gb"),
        ("8xA100-40", 8, 1, "a100-sxm-40gb"),
        ("4 x 80GB A100", 4, 1, "a100-sxm-80gb"),
        ("Tesla T4", 1, 1, "t4-16gb"),
        ("4x Tesla V100-PCIE-16GB", 4, 1, "v100-pcie-16gb"),
        ("V100 32GB PCIe", 1, 1, "v100-pcie-32gb"),
        ("NVIDIA RTX 6000 Ada Generation", 1, 1, "rtx-6000-ada-48gb"),
        ("2x RTX 6000 48GB", 2, 1, "rtx-6000-ada-48gb"),
        ("RTX 4000 Ada", 1, 1, "rtx-4000-ada-20gb"),
        ("4xA2000", 4, 1, "rtx-a2000-12gb"),
        ("RTX A2000 6GB", 1, 1, "rtx-a2000-6gb"),
        ("2x NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 2, 1, "rtx-pro-6000-96gb"),
        ("RTX 4070 Ti Super", 1, 1, "rtx-4070-ti-super-16gb"),
        ("3x 5070Ti", 3, 1, "rtx-5070-ti-16gb"),
        ("7xA10", 7, 1, "a10-24gb"),
        ("8xA30", 8, 1, "a30-24gb"),
        ("2x A2", 2, 1, "a2-16gb"),
        ("4 L20", 4, 1, "l20-48gb"),
        ("8xH20-141GB", 8, 1, "h20-141gb"),
        ("8x H200 PCIe", 8, 1, "h200-nvl-141gb"),
        ("H100 94GB", 1, 1, "h100-nvl-94gb"),
        ("8x B200 192GB", 8, 1, "b200-sxm-180gb"),
        ("8x B300 288GB", 8, 1, "b300-sxm-270gb"),
        ("GH200", 1, 1, "gh200-96gb"),
        ("4x GH200 144GB", 4, 4, "gh200-144gb"),
        ("DGX Spark x2", 2, 2, "gb10-128gb"),
        ("1x GB10", 1, 1, "gb10-128gb"),
        ("GB200 NVL72 x2", 144, 2, "gb200-186gb"),
        ("VR200 NVL72", 72, 1, "vr200-288gb"),
        ("2x Vera Rubin NVL72", 144, 2, "vr200-288gb"),
        ("16x Ascend 910B2", 16, 2, "ascend-910b"),
        ("2 nodes x 8 Ascend 910B", 16, 2, "ascend-910b"),
        ("8x Intel Gaudi 2", 8, 1, "gaudi-2-96gb"),
        ("MI300X 8-way", 8, 1, "mi300x-192gb"),
        ("TPU v5e-256", 256, 1, "tpu-v5e-16gb"),
        ("v6e-16", 16, 1, "tpu-v6e-32gb"),
        ("v5litepod-8", 8, 1, "tpu-v5e-16gb"),
        ("v5p-128", 64, 1, "tpu-v5p-95gb"),
        ("TPU v4-32", 16, 1, "tpu-v4-32gb"),
        ("2x v5e-16", 32, 2, "tpu-v5e-16gb"),
        ("TPU v6e 4x4", 16, 1, "tpu-v6e-32gb"),
        ("v5e-16 (4x4)", 16, 1, "tpu-v5e-16gb"),
        ("v5p 2x2x4", 16, 1, "tpu-v5p-95gb"),
        ("8 TPU v5e", 8, 1, "tpu-v5e-16gb"),
        ("NVIDIA-H100-80GB-HBM3", 1, 1, "h100-sxm-80gb"),
        ("Tesla-V100-SXM2-16GB x 8", 8, 1, "v100-sxm2-16gb"),
        ("nvidia.com/gpu: 8 A100", 8, 1, "a100-sxm-80gb"),
        ("1,024 H100s", 1024, 128, "h100-sxm-80gb"),
        ("2 x 8 x H100-80GB-SXM (IB NDR 400)", 16, 2, "h100-sxm-80gb"),
        ("two racks of GB200", 144, 2, "gb200-186gb"),
        ("2 nodes x 4 GB200", 8, 2, "gb200-186gb"),
        ("gpu:a100:4", 4, 1, "a100-sxm-80gb"),
        ("--gres=gpu:h100:8", 8, 1, "h100-sxm-80gb"),
        ("2机16卡A800", 16, 2, "a800-sxm-80gb"),
        ("两台8卡 H20", 16, 2, "h20-96gb"),
        ("双卡3090", 2, 1, "rtx-3090-24gb"),
        ("p5.48xlarge x 4", 32, 4, "h100-sxm-80gb"),
        ("4 p5en.48xlarge instances", 32, 4, "h200-sxm-141gb"),
        ("2 nodes of p4d.24xlarge", 16, 2, "a100-sxm-40gb"),
        ("8x g5.xlarge", 8, 8, "a10g-24gb"),
        ("g5.12xlarge", 4, 1, "a10g-24gb"),
        ("a3-megagpu-8g", 8, 1, "h100-sxm-80gb"),
        ("2x a2-highgpu-4g", 8, 2, "a100-sxm-40gb"),
        ("a2-megagpu-16g", 16, 1, "a100-sxm-40gb"),
        ("ND H100 v5", 8, 1, "h100-sxm-80gb"),
        ("Standard_ND96amsr_A100_v4 x 2", 16, 2, "a100-sxm-80gb"),
        ("Standard_NC80adis_H100_v5", 2, 1, "h100-nvl-94gb"),
        ("4 BM.GPU.A100-v2.8", 32, 4, "a100-sxm-80gb"),
        ("gpu_8x_h100_sxm5", 8, 1, "h100-sxm-80gb"),
        ("2x gpu_1x_a10", 2, 2, "a10-24gb"),
        ("gd-8xh100ib-i128", 8, 1, "h100-sxm-80gb"),
        ("ct5lp-hightpu-4t", 4, 1, "tpu-v5e-16gb"),
    ],
)
def test_a_phrase_means_what_it_says(words: str, devices: int, nodes: int, card: str) -> None:
    assert meaning(words) == (devices, nodes, {card})


@pytest.mark.parametrize("name", [name for name in devices_by_name() if name in node_types_by_name()])
def test_no_known_card_is_read_as_another(name: str) -> None:
    known = devices_by_name()
    assert devices_of(cluster_of_words(f"2x{name}")) == {known[name].name}
    assert devices_of(cluster_of_words(f"{name.upper().replace('-', ' ')} x 2")) == {known[name].name}
    meant = {
        **{node: node_types_by_name()[node].device.name for node in node_types_by_name()},
        **{n: known[n].name for n in known},
    }
    for changed in (name[:-1], name + "9", name + "x", "x" + name, "1" + name):
        try:
            read = devices_of(cluster_of_words(f"2 {changed}"))
        except ClusterError:
            continue
        # A name without its last letter may still be this card: "a100-40g".
        assert read == {meant.get(changed, known[name].name)}, changed
        assert changed in meant or not changed.startswith(name), changed


@pytest.mark.parametrize("node", node_types(), ids=lambda node: node.name)
def test_every_node_type_is_read_by_its_name(node: object) -> None:
    (group,) = cluster_of_words(f"3x {node.name}").groups  # type: ignore[attr-defined]
    assert (group.node, group.nodes) == (node, 3)


@pytest.mark.parametrize("name", cloud_machines())
def test_every_machine_of_a_cloud_is_read_by_its_name(name: str) -> None:
    machine = cloud_machines()[name]
    for words in (f"2x {name}", f"2 {name.upper()}", f"{name.replace('-', '_')} x 2"):
        (group,) = cluster_of_words(words).groups
        assert (group.node, group.nodes) == (machine, 2), words


@pytest.mark.parametrize(
    "words", ["4x RTX 9090", "8 Cerebras WSE-3", "Groq LPU", "2 nodes x 8 H99", "GTX 1080 Ti", "p5.2xlarge"]
)
def test_an_unknown_card_is_answered_with_the_figures_that_describe_it(words: str) -> None:
    with pytest.raises(ClusterError) as refused:
        cluster_of_words(words)
    remedy = str(refused.value)
    assert "meshwright hardware add" in remedy
    assert all(option in remedy for option in ("--bf16", "--memory", "--bandwidth", "--fabric"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("8x H100 with liquid cooling", "given: 'liquid cooling'"),
        ("4x RTX 4090 Laptop", "given: 'Laptop'"),
        ("RTX 4090 D", "given: 'D'"),
        ("8x H100 64GB", "h100-sxm-80gb"),
        ("8xA100 24GB", "a100-sxm-40gb"),
        ("8x B200 PCIe", "b200-sxm-180gb"),
        ("4x RTX 4090 NVLink", "leave 'NVLink' out"),
        ("8x H100 without NVLink", "H100 PCIe"),
        ("8x RTX 6000", "rtx-6000-ada-48gb, quadro-rtx-6000-24gb"),
        ("16xH100 (3 nodes)", "a multiple of 3"),
        ("8xH100 (2 nodes)", "2x8xH100, or 8 H100 across 2 nodes"),
        ("4x RTX 4090, 2 nodes", "2x4xRTX 4090, or 4 RTX 4090 across 2 nodes"),
        ("64 GPUs (4 nodes x 8 H100)", "64 in all, 8 of each of 4 nodes"),
        ("8x H100 80GB 40GB", "40GB, 80GB"),
        ("H100 H200", "join parts by '+'"),
        ("8xH100, InfiniBand 400G, RoCE 200G", "say it once"),
        ("TPU v5e-8 (4x4)", "a shape of 8 chips"),
        ("v5p-7", "TensorCores"),
        ("4 GB200 nodes", "say 4 racks of GB200, or 16xGB200"),
        ("4 GB200 trays", "given: 'trays'"),
        ("16 V100 in one node", "1 to 8 of a node"),
    ],
)
def test_what_is_not_understood_is_said(words: str, hint: str) -> None:
    with pytest.raises(ClusterError) as refused:
        cluster_of_words(words)
    assert hint in str(refused.value)


def test_bridges_join_as_many_boards_as_they_can() -> None:
    (pair,) = cluster_of_words("2x A100 PCIe with NVLink").groups
    (four,) = cluster_of_words("4x A100 PCIe, NVLink bridges").groups
    (plain,) = cluster_of_words("2x A100 PCIe without NVLink").groups
    assert pair.node.intra.bytes_per_s == 300e9
    assert four.node.intra.bytes_per_s == plain.node.intra.bytes_per_s == 25e9
    assert "bridged" in four.node.intra.name


def test_boards_of_several_kinds_in_one_machine_are_joined_by_its_pcie() -> None:
    first, second = cluster_of_words("2x RTX 3090 + 1x RTX 4090").groups
    assert (first.node.inter.bytes_per_s, second.node.inter.bytes_per_s) == (25e9, 12.5e9)
    assert {group.node.inter.latency_s for group in (first, second)} == {first.node.intra.latency_s}
    for words in ("1 node of 2 RTX 3090 + 1 node of 2 RTX 4090", "2x RTX 3090@10Gb + 2x RTX 4090@10Gb", "8xH100 + 8xA100"):
        assert all(group.node.inter.name != "pcie of one host" for group in cluster_of_words(words).groups)


def test_a_slice_is_one_domain_of_hosts() -> None:
    (group,) = cluster_of_words("v6e-256").groups
    assert (group.node.devices_per_node, group.node.host_devices) == (256, 8)


def test_a_kind_of_network_alone_keeps_the_speed() -> None:
    (group,) = cluster_of_words("2x8xH100 over RoCE").groups
    assert (group.node.network, group.node.inter.bytes_per_s) == ("roce", 400e9)
    (group,) = cluster_of_words("2x8xA100, NDR InfiniBand").groups
    assert group.node.inter.bytes_per_s == 8 * 400e9 / 8
    (group,) = cluster_of_words("2x8xH100, 400Gb/s per GPU").groups
    assert group.node.inter.bytes_per_s == 8 * 400e9 / 8


@pytest.mark.parametrize(
    "words", ["8xH100, 512GB host memory", "8xH100 with 512 GB of system RAM per node", "512GB CPU memory, 8xH100"]
)
def test_the_memory_of_hosts_is_said_beside_devices(words: str) -> None:
    (group,) = cluster_of_words(words).groups
    assert (group.n_devices, group.node.host_memory_bytes) == (8, 512_000_000_000)


def test_the_memory_of_hosts_is_said_once() -> None:
    with pytest.raises(ClusterError, match="said twice"):
        cluster_of_words("8xH100, 512GB host memory, 1TB host memory")


def test_the_option_says_the_same() -> None:
    line = OneLine("qwen3-8b", gpus="8xH100", batch="64", seq="4096", host_memory="512GB")
    assert request_of_line(line)["cluster"] == "8xH100, 512GB host memory"
    with pytest.raises(InvalidInputError, match="--host-memory"):
        request_of_line(replace(line, host_memory="much"))


# Counts: what is stated is what is read, or it is refused.

NAMES_OF_NODES = ("dgx-h100", "DGX H100", "HGX H100", "HGX H200", "DGX A100", "MI300X platform", "GB200 NVL72", "mi300x-oam")
SOCKETS = (
    "MI300X OAM",
    "MI300X-OAM",
    "mi325x oam",
    "MI355X OAM",
    "MI250X OAM",
    "H100 SXM",
    "A100 SXM4",
    "B200 SXM",
    "H200 SXM5",
)
OF_DEVICES = (
    *("{d}x {card}", "{d} {card}", "{d}x{card}", "{card} x{d}", "{card} x {d}", "{d} {card} GPUs", "{d}x {card} accelerators"),
    *("{d} GPUs {card}", "{d}-way {card}", "gpu:{card}:{d}", "--gres=gpu:{card}:{d}", "{card}:{d}", "1 node of {d} {card}"),
)
DEVICES_OF_NODES = (
    "{d} {card} GPUs",
    "{d}x {card} GPUs",
    "{d} GPUs {card}",
    "{card} x {d} GPUs",
    "{card}: {d} GPUs",
    "{d}-way {card}",
)
SLURM = (
    "gpu:{card}:{d} on {n} nodes",
    "gpu:{card}:{d}, {n} nodes",
    "{n} nodes, gpu:{card}:{d}",
    "--gres=gpu:{card}:{d} {n} nodes",
)


@pytest.mark.parametrize("form", OF_DEVICES)
@pytest.mark.parametrize("card", [*SOCKETS, *CARDS])
def test_a_number_beside_a_device_and_its_socket_counts_devices(card: str, form: str) -> None:
    for devices in (1, 3, 4, 8):
        words = form.format(d=devices, card=card)
        assert cluster_of_words(words).n_devices == devices, words


@pytest.mark.parametrize("form", DEVICES_OF_NODES)
@pytest.mark.parametrize("name", NAMES_OF_NODES)
def test_devices_that_are_said_beside_a_name_of_nodes_are_devices(name: str, form: str) -> None:
    for devices in (2, 4, 8):
        words = form.format(d=devices, card=name)
        assert cluster_of_words(words).n_devices == devices, words


@pytest.mark.parametrize("form", SLURM)
@pytest.mark.parametrize("card", ["h100", "a100", "mi300x", "h200"])
def test_devices_as_slurm_says_them_are_those_of_each_node(card: str, form: str) -> None:
    for nodes, devices in ((2, 8), (4, 8), (4, 4), (3, 6)):
        words = form.format(n=nodes, d=devices, card=card)
        assert meaning(words)[:2] == (nodes * devices, nodes), words


@pytest.mark.parametrize("words", ["8x HGX H100", "HGX H200 x8", "72x GB200 NVL72", "8 MI300X platform"])
def test_as_many_nodes_as_each_has_devices_are_asked_for_again(words: str) -> None:
    with pytest.raises(ClusterError, match="nodes, or devices"):
        cluster_of_words(words)


@pytest.mark.parametrize("words", ["h100:8 on 4 nodes", "H100:4 across 2 nodes"])
def test_devices_behind_a_colon_on_nodes_are_asked_for_again(words: str) -> None:
    with pytest.raises(ClusterError, match="of each node, or of all"):
        cluster_of_words(words)


@pytest.mark.parametrize("name", [node.name for node in node_types()])
def test_a_name_as_the_catalogue_writes_it_is_that_of_nodes(name: str) -> None:
    (group,) = cluster_of_words(f"8x {name}").groups
    assert (group.node.name, group.nodes) == (name, 8)
