"""Slurm: a batch script of one task a node (sbatch(1), srun(1))."""

from __future__ import annotations

from meshwright.app.base.quoting import here_document, shell_comment, shell_word
from meshwright.app.launching.exporters.launch import SCRIPT_NAME
from meshwright.app.launching.exporters.schedulers.job import Job, JobFile

FILE = "job.sbatch"
_SHARED = "the folder that sbatch is called from is on a file system that all nodes of the job share"
_NODES_BY_NAME = "Slurm orders nodes by name: choose the job's nodes (--nodelist) so that the plan's groups follow in order"
_REACHED = "the launcher reaches the other nodes of the job from the first one, by pdsh or ssh without a password"


def job_file(job: Job) -> JobFile:
    """Return the batch script: it writes the files where sbatch is called, and runs the launch script once a node.

    Nodes are the job's alone (--exclusive), which gives it all their devices; --gres asks for as many as every node has.
    """
    assumptions = (
        _SHARED,
        *((_NODES_BY_NAME,) if job.node_kinds > 1 else ()),
        *((_REACHED,) if job.host_file is not None else ()),
    )
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.n_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gres=gpu:{min(job.devices_per_node)}",
        "#SBATCH --exclusive",
        *(shell_comment(f"Takes for granted: {assumption}") for assumption in assumptions),
        "set -eu",
        'cd "$SLURM_SUBMIT_DIR"',
        *(here_document(name, text) for name, text in sorted(job.files.items())),
        *(_on_every_node(job) if job.host_file is None else _on_the_first(job, job.host_file)),
        "",
    ]
    return JobFile(FILE, "\n".join(lines), f"sbatch {FILE}", assumptions)


def _on_every_node(job: Job) -> list[str]:
    return [
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_ADDR",
        f"srun --kill-on-bad-exit=1 sh -c '{_of_a_node(job)}'",
    ]


def _on_the_first(job: Job, host_file: str) -> list[str]:
    """The batch script runs on the first node; the launcher starts the others that the host file lists."""
    slots = " ".join(map(str, job.devices_per_node))
    return [
        f"set -- {slots}",
        'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
        '    echo "$host slots=$1"',
        "    shift",
        f"done > {shell_word(host_file)}",
        f"exec sh ./{SCRIPT_NAME}",
    ]


def _of_a_node(job: Job) -> str:
    """The commands of a node; numbers alone stand in them, so that single quotes hold them."""
    said = ["export NODE_RANK=$SLURM_NODEID"]
    if not job.is_even:
        said += [f"set -- {' '.join(map(str, job.devices_per_node))}", "shift $SLURM_NODEID", "export DEVICES=$1"]
    return "; ".join([*said, f"exec sh ./{SCRIPT_NAME}"])
