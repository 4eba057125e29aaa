"""Shared by the tests of branching and others: small_request."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from tests.unit.solver.training.full_space import encoder_decoder
from tests.unit.solver.training.instances import random_cluster


def small_request(seed: int) -> TrainingRequest:
    """An encoder-decoder of one or two layers each on a few devices with more or less room."""
    rng = np.random.default_rng(seed)
    model = encoder_decoder(rng)
    workload = TrainingWorkload("training", global_batch=int(rng.choice([4, 8])), seq_len=128, precision=DType.BF16)
    pp = ((1, 2), (2,), (2, 4))[seed % 3]
    search = Search(launcher=Launcher.DEEPSPEED, pp=pp, tp=(1,), microbatch=(1, 2), zero_stages=(0, 1), risk=0.5)
    return TrainingRequest(model, random_cluster(rng, model, free=False), workload, search=search)
