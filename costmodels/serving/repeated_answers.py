"""Step times of ranks that share the tokens of prompts and repeat those of answers (SGLang, prefill context parallelism).

SGLang splits a step over cp ranks only where every sequence in it has 2 cp tokens or more (zigzag strategy): a step of decoding
sequences is run by each of them whole, and so is one that mixes them with prompts. Prompts and answers therefore go apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costmodels.queueing.step_times import StepTimes


def with_repeated_answers(prompts: StepTimes, answers: StepTimes) -> StepTimes:
    """Times of steps that hold either prompts, which take those of ``prompts``, or decoding sequences, those of ``answers``.

    A step of n sequences has n tokens: what it takes more or less than as many tokens of a prompt is put to its attention. Of
    steps that hold both nothing is said.
    """
    sequences = np.minimum(np.arange(prompts.max_sequences + 1), prompts.max_tokens)
    more_s = answers.tokens_s[:, sequences] - prompts.tokens_s[:, sequences]
    return replace(prompts, logits_s=answers.logits_s, decode_s=answers.decode_s + more_s[:, :, None])
