"""The checker accepts every prediction that a page of accuracy prints."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st

from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.scores import score_run
from meshwright.app.evidence.training.sources import sources_of
from tests.laws.law import Law
from tests.unit.app.validation.tables import MAPPING, write_table

EXPERTS = {"arch": "moe-gated", "n_experts": "8", "top_k": "2"}
STATES = {"arch": "mamba2 state=64 ngroups=8 expand=2 chunk=64", "heads": "", "kv_heads": ""}
_ROW = st.fixed_dictionaries(
    {
        "n_layers": st.sampled_from(["4", "8", "14"]),
        "tp": st.sampled_from(["1", "2", "4"]),
        "pp": st.sampled_from(["1", "2", "4"]),
        "dp": st.sampled_from(["1", "2"]),
        "micro_batch": st.sampled_from(["1", "2"]),
        "global_batch": st.sampled_from(["8", "32"]),
        "recompute": st.sampled_from(["", "none", "full", "selective", "full of 2 layers", "fine-grained"]),
    },
    optional={
        "cp": st.sampled_from(["1", "2"]),
        "vpp": st.just("2"),
        "sp": st.sampled_from(["0", "1"]),
        "zero_stage_or_fsdp": st.sampled_from(["0", "1", "2", "3"]),
        "precision": st.sampled_from(["bf16", "fp16", "fp8"]),
        "flash_attention": st.sampled_from(["0", "1"]),
        "gpu": st.sampled_from(["H100", "A100-SXM-80GB", "Ascend-910B"]),
        "gpu_mem_gb": st.sampled_from(["16", "80"]),
        "source_id": st.sampled_from(["ours", "seed_ascend"]),
    },
)


def is_accepted(row: dict[str, str], body: dict[str, str]) -> None:
    if row.get("flash_attention") == "0":
        # Attention that is not fused is not split over a sequence: such a row says so.
        row = row | {"cp": "1"}
    degrees = [int(row.get(axis, "1")) for axis in ("tp", "pp", "dp", "cp")]
    n_gpus = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    cells = row | body | {"n_gpus": str(n_gpus), "gpus_per_node": str(min(8, n_gpus))}
    with TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "table.csv", cells)
        (measured,) = read_measured_runs(table, sources_of(table, MAPPING))
    scored = score_run(measured)
    if scored.prediction is None:
        assert scored.reason is not None
        assert not any(words in scored.reason for words in ("internal error", "the checker"))


LAW = Law(
    sentence="The checker accepts every prediction that a page of accuracy prints.",
    drawn={"row": _ROW, "body": st.sampled_from([{}, EXPERTS, STATES])},
    check=is_accepted,
    few=12,
    many=400,
    most=3500,
    draw_s=0.09,
)
