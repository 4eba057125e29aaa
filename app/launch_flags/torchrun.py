"""The flags of ``torchrun`` (torch.distributed.run)."""

from __future__ import annotations

from meshwright.app.launch_flags.flag import Flag, FlagTable, count


def _most(text: str) -> int:
    """Return a number of nodes; the most of a range, as in 1:4."""
    return count(text.rsplit(":", maxsplit=1)[-1])


def _devices(text: str) -> int | None:
    """Return a number of ranks; None where it is that of the devices that are there."""
    return None if text in ("auto", "gpu") else count(text)


TORCHRUN = FlagTable(
    (Flag(("nnodes",), "nodes", _most), Flag(("nproc-per-node",), "devices", _devices)),
    harmless={
        **dict.fromkeys(("node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id"), True),
        **dict.fromkeys(("rdzv-conf", "local-ranks-filter", "role", "tee", "log-dir", "max-restarts", "redirects"), True),
        **dict.fromkeys(("standalone", "module", "m", "no-python"), False),
    },
)
