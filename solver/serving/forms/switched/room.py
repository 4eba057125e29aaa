"""The room that workers which switch layouts lack: memory in either layout, or on the host."""

from __future__ import annotations

from meshwright.solver.answer.reason import Reason
from meshwright.solver.serving.forms.switched.engine import SwitchedEngine
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.workers.reasons import memory_shortfall


def room_shortfall(engine: SwitchedEngine, evaluator: Evaluator, *, step_tokens: int, sequences: int) -> Reason:
    """Return the room that a worker lacks most to hold its longest request: memory in either layout, or on the host."""
    prompt, longest = evaluator.traffic.longest_prompt, evaluator.longest_request
    at_once = engine.prompts_in_a_step(step_tokens)
    node = engine.layout.group.node
    need = engine.host_weights_bytes + engine.replicas_per_node * prompt * engine.host_token_bytes
    have = float(node.host_memory_bytes)
    message = (
        f"host memory of {node.name} must hold {need / 1e9:.1f} GB: the weights, and keys and values of a prompt of {prompt} "
        f"tokens for each of {engine.replicas_per_node} workers; it has {have / 1e9:.1f} GB"
    )
    reasons = [
        memory_shortfall(engine.prefill, step_tokens=step_tokens, sequences=at_once, tokens=prompt + 1),
        memory_shortfall(engine.decode, step_tokens=engine.decode_step_tokens, sequences=sequences, tokens=longest),
        Reason("host_memory", need, have, "bytes", message, remedies=("raise host_memory_bytes of the node",)),
    ]
    return max(reasons, key=lambda reason: reason.need / max(reason.have, 1.0))
