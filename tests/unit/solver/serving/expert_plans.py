"""Shared by the tests of expert plans and others: CONFIG, MODEL, expert_request, planned."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.experts import BalancedRouting
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.requests import cluster, serving_request

CONFIG = {
    "model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 8192, "moe_intermediate_size": 1024,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "kv_lora_rank": 512,
    "q_lora_rank": 768, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "max_position_embeddings": 16384,
}  # fmt: skip


MODEL = read_huggingface_config(CONFIG, name="small-moe")


def expert_request(search: Search, objective: Objective = Objective.DEVICES, copies: int = 0) -> ServingRequest:
    asked = serving_request(rate=6.0, precision=DType.FP8, objective=objective, on=cluster(per_node=8), search=search)
    experts = BalancedRouting("balanced", copies)
    workload = replace(asked.workload, weights=WeightFormat.FP8_BLOCK, experts=experts)
    return replace(asked, model=MODEL, workload=workload)


def planned(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert answer.feasible
    assert check(answer, request) == ()
    return answer
