"""Batch scripts: what they ask Slurm for is the cluster, and the variables that Slurm sets are put in."""

from __future__ import annotations

import pytest

from meshwright.app.launching.parts.start import BatchJob, read_batch_job
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.launching.reading.script import read_script
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of
from meshwright.costmodels.errors import InvalidInputError
from tests.unit.app.explaining.megatron_lm import LLAMA
from tests.unit.app.explaining.resolving import resolve

JOB = "#!/bin/bash\n#SBATCH --nodes=4 # all\n#SBATCH --gres=gpu:h100:8\n#SBATCH --time=4:00:00 -p main\n"
SRUN = "srun python pretrain_gpt.py --global-batch-size 64 " + LLAMA


@pytest.mark.parametrize(
    ("lines", "job"),
    [
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8", BatchJob(2, 8)),
        ("#SBATCH -N2 --gpus-per-node=a100:4", BatchJob(2, 4, "a100")),
        ("#SBATCH --nodes=2-4 --gres=gpu:8", BatchJob(4, 8)),
        ("#SBATCH --nodes=2 --gpus=h200:16", BatchJob(2, 8, "h200")),
        ("#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-task=1", BatchJob(2, 8)),
        ("#SBATCH --gres=lustre:1,gpu:h100:8(S:0-1)", BatchJob(1, 8, "h100")),
        ("#SBATCH --nodes=3 -J name", BatchJob(3)),
    ],
)
def test_what_a_job_asks_for(lines: str, job: BatchJob) -> None:
    assert read_batch_job(lines) == job


def test_a_job_is_the_cluster() -> None:
    asked = asked_of(JOB + SRUN, OneLine(""), resolve)
    assert asked.request.cluster.n_devices == 32
    assert asked.request.cluster.groups[0].node.device.name.casefold().startswith("h100")
    assert isinstance(asked.stated, StatedTraining) and asked.stated.world == 32
    assert asked_of(JOB + SRUN, OneLine("", gpus="8x8xA100"), resolve).request.cluster.n_devices == 64


def test_the_variables_of_slurm_are_put_in() -> None:
    script = JOB + "torchrun --nnodes $SLURM_NNODES --nproc-per-node ${SLURM_GPUS_ON_NODE} pretrain_gpt.py " + LLAMA
    found = read_command(script)
    assert isinstance(found, StatedTraining) and found.world == 32


def test_a_job_of_unnamed_devices_asks_for_them() -> None:
    with pytest.raises(InvalidInputError, match="--gpus 4x8xH100") as told:
        asked_of(JOB.replace("h100:", "") + SRUN, OneLine(""), resolve)
    assert "4 nodes of 8 devices" in str(told.value)


@pytest.mark.parametrize("line", ["#SBATCH --nodes=many", "#SBATCH --gres=gpu:h100:-1", "#SBATCH --comment='x"])
def test_lines_that_slurm_refuses(line: str) -> None:
    with pytest.raises(InvalidInputError):
        read_batch_job(line)


def test_files_that_a_script_writes_are_kept() -> None:
    script = read_script("cat > a.json <<'END'\n{\"it's\": 1}\nEND\ncat <<X > b\n\tone\nX\nrun a.json\n")
    assert script.files == {"a.json": '{"it\'s": 1}\n', "b": "\tone\n"}
    assert script.commands[-1] == ("run", "a.json")
