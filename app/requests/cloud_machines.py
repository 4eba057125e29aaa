"""Machines that clouds rent, under the names they have there, as node types of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from meshwright.costmodels.cluster.cluster import NodeType, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import GIB

LATENCY_S: Mapping[str, float] = {
    "infiniband": 2.7e-6,
    "roce": 2.7e-6,
    "slingshot": 2.7e-6,
    "omni-path": 2.7e-6,
    "efa": 1.5e-5,
    "ethernet": 2e-5,
}
"""Latency of a hop between nodes by kind of network, as the catalogue's node types have it."""

_SHARE = "-"

# name, other names | node type | devices | Gb/s of the machine in all | kind of network | host memory, GiB
# A "-" is the catalogue's node type's own, a part of a node having its share. Figures: the clouds' pages of their machines,
# read in 2025; written from memory of them, not checked against them.
_MACHINES = """
p3.2xlarge                      | v100-16gb | 1 | 10 | ethernet | 61
p3.8xlarge                      | v100-16gb | 4 | 10 | ethernet | 244
p3.16xlarge                     | v100-16gb | 8 | 25 | ethernet | 488
p5.4xlarge                      | h100 | 1 | 100 | efa | 256
p5e.48xlarge, p5e               | h200 | 8 | 3200 | efa | 2048
p5en.48xlarge, p5en             | h200 | 8 | 3200 | efa | 2048
p6-b200.48xlarge, p6-b200       | b200 | 8 | 3200 | efa | 2048
p6-b300.48xlarge, p6-b300       | b300 | 8 | 6400 | efa | 4096
p6e-gb200.36xlarge              | gb200 | 4 | 1600 | efa | 960
u-p6e-gb200x36                  | gb200 | 36 | 14400 | efa | 8640
u-p6e-gb200x72, p6e-gb200       | gb200 | 72 | 28800 | efa | 17280
trn2u.48xlarge                  | trn2 | 16 | - | - | -
g4dn.xlarge                     | t4 | 1 | 25 | ethernet | 16
g4dn.2xlarge                    | t4 | 1 | 25 | ethernet | 32
g4dn.4xlarge                    | t4 | 1 | 25 | ethernet | 64
g4dn.8xlarge                    | t4 | 1 | 50 | ethernet | 128
g4dn.16xlarge                   | t4 | 1 | 50 | ethernet | 256
g4dn.metal                      | t4 | 8 | 100 | ethernet | 384
g5.xlarge                       | a10g | 1 | 10 | ethernet | 16
g5.2xlarge                      | a10g | 1 | 10 | ethernet | 32
g5.4xlarge                      | a10g | 1 | 25 | ethernet | 64
g5.8xlarge                      | a10g | 1 | 25 | ethernet | 128
g5.16xlarge                     | a10g | 1 | 25 | ethernet | 256
g5.12xlarge                     | a10g | 4 | 40 | ethernet | 192
g5.24xlarge                     | a10g | 4 | 50 | ethernet | 384
g6.xlarge                       | l4 | 1 | 10 | ethernet | 16
g6.2xlarge                      | l4 | 1 | 10 | ethernet | 32
g6.4xlarge                      | l4 | 1 | 25 | ethernet | 64
g6.8xlarge                      | l4 | 1 | 25 | ethernet | 128
g6.16xlarge                     | l4 | 1 | 25 | ethernet | 256
g6.12xlarge                     | l4 | 4 | 40 | ethernet | 192
g6.24xlarge                     | l4 | 4 | 50 | ethernet | 384
g6.48xlarge, g6                 | l4 | 8 | 100 | ethernet | 768
g6e.xlarge                      | l40s | 1 | 20 | ethernet | 32
g6e.2xlarge                     | l40s | 1 | 20 | ethernet | 64
g6e.4xlarge                     | l40s | 1 | 20 | ethernet | 128
g6e.8xlarge                     | l40s | 1 | 25 | efa | 256
g6e.16xlarge                    | l40s | 1 | 35 | efa | 512
g6e.12xlarge                    | l40s | 4 | 100 | efa | 384
g6e.24xlarge                    | l40s | 4 | 200 | efa | 768
a2-highgpu-1g                   | a100-40gb | 1 | 24 | ethernet | 85
a2-highgpu-2g                   | a100-40gb | 2 | 32 | ethernet | 170
a2-highgpu-4g                   | a100-40gb | 4 | 50 | ethernet | 340
a2-highgpu-8g                   | a100-40gb | 8 | 100 | ethernet | 680
a2-megagpu-16g                  | a100-40gb | 16 | 100 | ethernet | 1360
a2-ultragpu-1g                  | a100 | 1 | 24 | ethernet | 170
a2-ultragpu-2g                  | a100 | 2 | 32 | ethernet | 340
a2-ultragpu-4g                  | a100 | 4 | 50 | ethernet | 680
a2-ultragpu-8g                  | a100 | 8 | 100 | ethernet | 1360
a3-highgpu-1g                   | h100 | 1 | 25 | ethernet | 234
a3-highgpu-2g                   | h100 | 2 | 50 | ethernet | 468
a3-highgpu-4g                   | h100 | 4 | 100 | ethernet | 936
a3-highgpu-8g                   | h100 | 8 | 800 | ethernet | 1872
a3-edgegpu-8g                   | h100 | 8 | 800 | ethernet | 1872
a3-megagpu-8g, a3-mega          | h100 | 8 | 1600 | ethernet | 1872
a3-ultragpu-8g, a3-ultra        | h200 | 8 | 3200 | roce | 2952
a4-highgpu-8g                   | b200 | 8 | 3200 | roce | 3968
a4x-highgpu-4g                  | gb200 | 4 | 1600 | roce | 884
g2-standard-4                   | l4 | 1 | 10 | ethernet | 16
g2-standard-8                   | l4 | 1 | 16 | ethernet | 32
g2-standard-12                  | l4 | 1 | 16 | ethernet | 48
g2-standard-16                  | l4 | 1 | 32 | ethernet | 64
g2-standard-32                  | l4 | 1 | 32 | ethernet | 128
g2-standard-24                  | l4 | 2 | 32 | ethernet | 96
g2-standard-48                  | l4 | 4 | 50 | ethernet | 192
g4-standard-48                  | rtx-pro-6000 | 1 | 50 | ethernet | 180
g4-standard-96                  | rtx-pro-6000 | 2 | 100 | ethernet | 360
g4-standard-192                 | rtx-pro-6000 | 4 | 200 | ethernet | 720
g4-standard-384                 | rtx-pro-6000 | 8 | 400 | ethernet | 1440
ct4p-hightpu-4t                 | tpu-v4 | 4 | - | - | -
ct5lp-hightpu-1t                | v5e | 1 | - | - | 48
ct5lp-hightpu-4t                | v5e | 4 | - | - | 192
ct5lp-hightpu-8t                | v5e | 8 | - | - | 384
ct5p-hightpu-1t                 | v5p | 1 | - | - | 112
ct5p-hightpu-2t                 | v5p | 2 | - | - | 224
ct5p-hightpu-4t                 | v5p | 4 | - | - | 448
ct6e-standard-1t                | v6e | 1 | - | - | 176
ct6e-standard-4t                | v6e | 4 | - | - | 720
ct6e-standard-8t                | v6e | 8 | - | - | 1440
tpu7x-standard-4t               | tpu-v7 | 4 | - | - | 960
nd96asr-v4, nd96asr-a100-v4, nd-a100-v4, ndasra100-v4, nda100-v4 | a100-40gb | 8 | 1600 | infiniband | 900
nd96amsr-a100-v4, ndm-a100-v4, ndma100-v4, ndamsra100-v4 | a100 | 8 | 1600 | infiniband | 1900
nd96isr-h100-v5, nd-h100-v5, ndh100-v5 | h100 | 8 | 3200 | infiniband | 1900
nd96is-h100-v5                  | h100 | 8 | 80 | ethernet | 1900
nd96isr-h200-v5, nd-h200-v5, ndh200-v5 | h200 | 8 | 3200 | infiniband | 1850
nd96isr-mi300x-v5, nd-mi300x-v5, ndmi300x-v5 | mi300x | 8 | 3200 | infiniband | 1850
nd128isr-ndr-gb200-v6, nd128isr-gb200-v6, nd-gb200-v6 | gb200 | 4 | 1600 | infiniband | 900
nd128isr-gb300-v6, nd-gb300-v6  | gb300 | 4 | 3200 | infiniband | 900
nd40rs-v2, ndv2                 | v100 | 8 | 100 | infiniband | 672
nc6s-v3                         | v100-pcie | 1 | - | - | 112
nc12s-v3                        | v100-pcie | 2 | - | - | 224
nc24s-v3                        | v100-pcie | 4 | - | - | 448
nc24rs-v3                       | v100-pcie | 4 | 56 | infiniband | 448
nc24ads-a100-v4                 | a100-pcie | 1 | 20 | ethernet | 220
nc48ads-a100-v4                 | a100-pcie | 2 | 40 | ethernet | 440
nc96ads-a100-v4                 | a100-pcie | 4 | 80 | ethernet | 880
nc40ads-h100-v5                 | h100-nvl | 1 | 40 | ethernet | 320
nc80adis-h100-v5                | h100-nvl | 2 | 80 | ethernet | 640
ncc40ads-h100-v5                | h100-nvl | 1 | 40 | ethernet | 320
nc4as-t4-v3                     | t4 | 1 | 8 | ethernet | 28
nc8as-t4-v3                     | t4 | 1 | 8 | ethernet | 56
nc16as-t4-v3                    | t4 | 1 | 8 | ethernet | 110
nc64as-t4-v3                    | t4 | 4 | 32 | ethernet | 440
nv36ads-a10-v5                  | a10 | 1 | 80 | ethernet | 440
nv36adms-a10-v5                 | a10 | 1 | 80 | ethernet | 880
nv72ads-a10-v5                  | a10 | 2 | 80 | ethernet | 880
bm.gpu.h100.8                   | h100 | 8 | 3200 | roce | 2048
bm.gpu.h200.8                   | h200 | 8 | 3200 | roce | 3072
bm.gpu.b200.8                   | b200 | 8 | 3200 | roce | 4096
bm.gpu.gb200.4                  | gb200 | 4 | 1600 | roce | 1024
bm.gpu.a100-v2.8                | a100 | 8 | 1600 | roce | 2048
bm.gpu4.8, bm.gpu.b4.8          | a100-40gb | 8 | 1600 | roce | 2048
bm.gpu3.8                       | v100-16gb | 8 | 50 | ethernet | 768
bm.gpu.mi300x.8                 | mi300x | 8 | 3200 | roce | 2048
bm.gpu.mi355x.8                 | mi355x | 8 | 3200 | roce | 3072
bm.gpu.l40s.4                   | l40s | 4 | 400 | roce | 1024
bm.gpu.a10.4                    | a10 | 4 | 100 | ethernet | 1024
vm.gpu.a10.1                    | a10 | 1 | 24 | ethernet | 240
vm.gpu.a10.2                    | a10 | 2 | 48 | ethernet | 480
vm.gpu3.1                       | v100-16gb | 1 | 4 | ethernet | 90
vm.gpu3.2                       | v100-16gb | 2 | 8 | ethernet | 180
vm.gpu3.4                       | v100-16gb | 4 | 24 | ethernet | 360
gd-8xh100ib-i128                | h100 | 8 | 3200 | infiniband | 2048
gd-8xh200ib-i128                | h200 | 8 | 3200 | infiniband | 2048
gd-8xa100-i128                  | a100 | 8 | 1600 | infiniband | 2048
gd-8xl40-i128                   | l40 | 8 | 100 | ethernet | 1024
gd-8xl40s-i128                  | l40s | 8 | 100 | ethernet | 1024
gd-1xgh200                      | gh200 | 1 | 100 | ethernet | 480
b200-8x                         | b200 | 8 | 3200 | infiniband | 2048
b300-8x                         | b300 | 8 | 6400 | infiniband | 4096
gb200-4x                        | gb200 | 4 | 1600 | infiniband | 960
gb300-4x                        | gb300 | 4 | 3200 | infiniband | 960
rtxp6000-8x                     | rtx-pro-6000 | 8 | 100 | ethernet | 1024
gpu-1x-a10                      | a10 | 1 | - | - | 200
gpu-1x-a100                     | a100-pcie-40 | 1 | - | - | 200
gpu-2x-a100                     | a100-pcie-40 | 2 | - | - | 400
gpu-4x-a100                     | a100-pcie-40 | 4 | - | - | 800
gpu-1x-a100-sxm4                | a100-40gb | 1 | - | - | 200
gpu-8x-a100, gpu-8x-a100-40gb-sxm4 | a100-40gb | 8 | - | - | 1800
gpu-8x-a100-80gb-sxm4           | a100 | 8 | - | - | 1800
gpu-1x-a6000                    | a6000 | 1 | - | - | 100
gpu-2x-a6000                    | a6000 | 2 | - | - | 200
gpu-4x-a6000                    | a6000 | 4 | - | - | 400
gpu-1x-rtx6000                  | quadro-rtx-6000 | 1 | - | - | 46
gpu-1x-h100-pcie                | h100-pcie | 1 | - | - | 200
gpu-1x-h100-sxm5, gpu-1x-h100-sxm | h100 | 1 | - | - | 225
gpu-2x-h100-sxm5, gpu-2x-h100-sxm | h100 | 2 | - | - | 450
gpu-4x-h100-sxm5, gpu-4x-h100-sxm | h100 | 4 | - | - | 900
gpu-8x-h100-sxm5, gpu-8x-h100-sxm | h100 | 8 | - | - | 1800
gpu-1x-gh200                    | gh200 | 1 | - | - | 432
gpu-1x-b200-sxm6                | b200 | 1 | - | - | 360
gpu-2x-b200-sxm6                | b200 | 2 | - | - | 720
gpu-4x-b200-sxm6                | b200 | 4 | - | - | 1440
gpu-8x-b200-sxm6                | b200 | 8 | - | - | 2900
gpu-8x-v100, gpu-8x-v100-n      | v100-16gb | 8 | - | - | 448
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """A row of the table; None is the node type's own figure, or its share."""

    name: str
    node: str
    devices: int
    network_gbit_per_s: float | None
    network: str | None
    host_gib: int | None


@cache
def cloud_machines() -> Mapping[str, NodeType]:
    """Return every machine of the table under each of its names, in lower case with dashes."""
    return {name: _node(machine) for machine, names in _rows() for name in names}


def _rows() -> Iterator[tuple[_Machine, tuple[str, ...]]]:
    for line in _MACHINES.strip().splitlines():
        names, node, devices, speed, network, host = (field.strip() for field in line.split("|"))
        known = tuple(name.strip() for name in names.split(","))
        yield (
            _Machine(
                name=known[0],
                node=node,
                devices=int(devices),
                network_gbit_per_s=None if speed == _SHARE else float(speed),
                network=None if network == _SHARE else network,
                host_gib=None if host == _SHARE else int(host),
            ),
            known,
        )


def _node(machine: _Machine) -> NodeType:
    node = part_of_node(node_type(machine.node), machine.devices)
    if machine.network_gbit_per_s is not None and machine.network is not None:
        node = replace(node, inter=replace(node.inter, bytes_per_s=machine.network_gbit_per_s * 1e9 / 8))
        node = with_kind(node, machine.network)
        node = replace(node, inter=replace(node.inter, name=f"{machine.network_gbit_per_s:g}g-{machine.network}"))
    if machine.host_gib is not None:
        node = replace(node, host_memory_bytes=machine.host_gib * GIB)
    return replace(node, name=machine.name)


def with_kind(node: NodeType, kind: str) -> NodeType:
    """Return the node with a network of a kind, with the latency of such networks if its own is of another kind."""
    if kind == node.network:
        return node
    return replace(node, network=kind, inter=replace(node.inter, latency_s=LATENCY_S[kind]))
