"""Ways to train beside predicting the next token of given text, and the parts of such a run that no figure counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = "the reference model: its forward pass, and its weights unless adapters alone are trained"
_PAIRS = "pairs: each sample is two sequences, a chosen and a rejected answer, which doubles tokens and activations"
_ROLLOUTS = "rollouts: answers that are generated between updates, and the memory of what generates them"
_REWARDS = "rewards: their models or functions"
_TWO_MODELS = "the models of rewards and of values, with the training of the latter"

_NOT_COUNTED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("dpo", "ipo", "bco"), (_PAIRS, _REFERENCE)),
    **dict.fromkeys(("orpo", "cpo", "simpo"), (_PAIRS,)),
    **dict.fromkeys(("reward", "rm", "prm"), (_PAIRS, "the head of scores, which stands for that of tokens")),
    "kto": (_REFERENCE, "a second forward pass over prompts with others' answers"),
    **dict.fromkeys(("grpo", "rloo", "dapo"), (_ROLLOUTS, _REWARDS, _REFERENCE)),
    **dict.fromkeys(("xpo", "nash"), (_ROLLOUTS, _REWARDS, _REFERENCE, _PAIRS)),
    "ppo": (_ROLLOUTS, _TWO_MODELS, _REFERENCE),
    "gkd": (_ROLLOUTS, "the teacher: its forward pass and its weights"),
}
"""What of a step is not counted, by the method's name in TRL, LLaMA-Factory and Axolotl."""
METHODS = frozenset(_NOT_COUNTED)
"""Methods whose runs are more than is counted."""


def method_of(*names: str | None) -> str | None:
    """Return the method that names of a script, a subcommand or a setting say, as in ``run_dpo.py``; None where none does."""
    for name in names:
        words = re.split(r"[^a-z]+", (name or "").rpartition("/")[2].casefold())
        found = next((word for word in words if word in METHODS), None)
        if found is not None:
            return found
    return None


def not_counted(method: str | None) -> tuple[str, ...]:
    """Return the parts of a run of a method that no figure counts; nothing of one that predicts the next token."""
    return () if method is None else _NOT_COUNTED[method]
