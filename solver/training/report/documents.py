"""Notes of a plan on the documents that its sequences are packed of."""

from __future__ import annotations

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import Fill
from meshwright.costmodels.model.operators import attention_pairs
from meshwright.solver.problem.request import TrainingRequest


def document_notes(request: TrainingRequest, *, step_s: float) -> tuple[str, ...]:
    """Return what is assumed of documents, if there are any; of padding, how much a step of ``step_s`` spends on it."""
    workload = request.workload
    if workload.lengths is not None and workload.lengths.fill is Fill.PADDED:
        useful = workload.lengths.useful_tokens(workload.seq_len)
        return (
            f"sequences hold {useful:,.0f} tokens of documents on average, and {1 - useful / workload.seq_len:.1%} padding, "
            "which is computed like them and counted in tokens/s: "
            f"{workload.global_batch * useful / step_s:,.0f} tokens/s are of documents",
        )
    packed = workload.documents
    if packed is None:
        return ()
    operators = (operator for run in request.model.chain for operator in request.model.block(run.block).operators)
    sizes = {**request.model.dims, BATCH: 1, SEQ: workload.seq_len}
    kept = [packed.mean_pairs(each) / attention_pairs(each, sizes) for each in operators if packed.masks(each)]
    if not kept:
        return ("no attention of the model is masked by documents: its kernels compute all pairs",)
    return (
        f"sequences are packed of documents of {packed.lengths.mean_tokens:,.0f} tokens on average, {packed.documents:,.1f} "
        f"whole or cut in each; their masks leave {min(kept):.1%} of the query-key pairs, on average over sequences",
    )
