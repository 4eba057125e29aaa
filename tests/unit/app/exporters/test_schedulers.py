"""Jobs of schedulers: the launch runs on every node with its rank, as a real shell and Kubernetes' own schemas see it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.exporters.launch import launch
from meshwright.app.exporters.schedulers import JobFile, Scheduler, job_file
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import TRAINERS
from tests.support.command_line import Cli
from tests.unit.app.exporters.plans import serving, training
from tests.unit.app.exporters.real_tools import ask

DIGEST = "sha256:3f9a1c07b2de"
NAME = "meshwright-3f9a1c07"
IMAGE_STAND_IN = "registry.example/trainer:latest"
HOSTILE = "x'; touch PWNED #"
TELLS = '#!/bin/sh\nprintf "%s %s %s|%s\\n" "${NODE_RANK-}" "${MASTER_ADDR-}" "${DEVICES-}" "$*" >> "$TOLD"\n'
"""A torchrun that only tells what it was started with."""
SCONTROL = '#!/bin/sh\nfor id in $(seq 0 $((NODES - 1))); do echo "n$id"; done\n'
SRUN = '#!/bin/sh\nshift\nfor id in $(seq 0 $((NODES - 1))); do SLURM_NODEID=$id "$@"; done\n'
"""An srun that runs the tasks of NODES nodes one after another."""


UNEVEN = (5, 3)


def answered(*, devices: int = 16, name: str | None = None) -> AnsweredRequest:
    """A plan of tp 8 on nodes of 8 devices."""
    plan, request = training(dp=devices // 8, tp=8)
    if name is not None:
        plan, request = replace(plan, model=name), replace(request, model=replace(request.model, name=name))
    return AnsweredRequest(replace(plan, digest=DIGEST), request)


def on_uneven_nodes() -> AnsweredRequest:
    """A plan of data parallelism alone on a node of 5 devices and one of 3."""
    plan, request = training(dp=8)
    (group,) = request.cluster.groups
    groups = (NodeGroup(f"of-{count}", replace(group.node, devices_per_node=count), 1) for count in UNEVEN)
    return AnsweredRequest(replace(plan, digest=DIGEST), replace(request, cluster=Cluster(tuple(groups))))


def job(given: AnsweredRequest, scheduler: Scheduler, launcher: Launcher = Launcher.MEGATRON_LM) -> JobFile:
    return job_file(launch(given, launcher), given, scheduler)


def run(command: list[str], folder: Path, **environment: str) -> list[str]:
    """The lines that torchrun told when a command ran in a folder, with stand-ins for what starts processes."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    starters = dict.fromkeys(("torchrun", "deepspeed", "accelerate", "trl"), TELLS)
    for name, text in {**starters, "scontrol": SCONTROL, "srun": SRUN}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    told = folder / "told"
    paths = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, cwd=folder, env={"PATH": paths, "TOLD": str(told), **environment}, check=True, timeout=30)
    return told.read_text().splitlines()


def batch_script(given: AnsweredRequest, folder: Path, *, nodes: int) -> list[str]:
    script = folder / "job.sbatch"
    script.write_text(job(given, Scheduler.SLURM).text)
    return run(["bash", str(script)], folder, SLURM_SUBMIT_DIR=str(folder), SLURM_JOB_NODELIST="n[0-2]", NODES=str(nodes))


def test_slurm_starts_each_node_with_its_rank(tmp_path: Path) -> None:
    text = job(answered(), Scheduler.SLURM).text
    asked = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        f"#SBATCH --job-name={NAME}",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gres=gpu:8",
        "#SBATCH --exclusive",
    ]
    # sbatch reads its lines up to the first command.
    assert text.index("#SBATCH --exclusive") < text.index("set -eu")
    told = batch_script(answered(), tmp_path, nodes=2)
    assert [line.partition("|")[0] for line in told] == ["0 n0 ", "1 n0 "]
    assert all("--nnodes 2 --nproc-per-node 8" in line and "pretrain_gpt.py" in line for line in told)


def test_slurm_tells_each_of_unequal_nodes_its_devices(tmp_path: Path) -> None:
    given = on_uneven_nodes()
    told = batch_script(given, tmp_path, nodes=2)
    assert [line.partition("|")[0] for line in told] == ["0 n0 5", "1 n0 3"]
    assert "--gres=gpu:3" in job(given, Scheduler.SLURM).text
    assert any("orders nodes by name" in assumption for assumption in job(given, Scheduler.SLURM).assumptions)


def test_a_launcher_that_starts_the_other_nodes_gets_a_file_of_them(tmp_path: Path) -> None:
    plan, request = training(dp=16)
    given = AnsweredRequest(plan, request)
    (tmp_path / "job.sbatch").write_text(job(given, Scheduler.SLURM, Launcher.DEEPSPEED).text)
    nodes = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "n[0-1]", "NODES": "2"}
    (told,) = run(["bash", "job.sbatch"], tmp_path, **nodes)
    assert "--hostfile hostfile --num_nodes 2 --num_gpus 8" in told
    assert (tmp_path / "hostfile").read_text().splitlines() == ["n0 slots=8", "n1 slots=8"]
    with pytest.raises(ExportError, match="starts the other nodes itself"):
        job(given, Scheduler.KUBERNETES, Launcher.DEEPSPEED)


@pytest.mark.parametrize("launcher", TRAINERS)
def test_a_job_carries_every_file_of_its_launcher(launcher: Launcher, tmp_path: Path) -> None:
    plan, request = training(dp=8)
    given = AnsweredRequest(plan, request)
    result = launch(given, launcher)
    manifest = list(yaml.safe_load_all(job(given, Scheduler.KUBERNETES, launcher).text))
    assert set(manifest[0]["data"]) == {*result.files, "launch.sh"}
    assert all(manifest[0]["data"][name] == text for name, text in result.files.items())
    (tmp_path / "job.sbatch").write_text(job(given, Scheduler.SLURM, launcher).text)
    run(["bash", "job.sbatch"], tmp_path, SLURM_SUBMIT_DIR=str(tmp_path), SLURM_JOB_NODELIST="n0", NODES="1")
    assert all((tmp_path / name).read_text().rstrip() == text.rstrip() for name, text in result.files.items())


def in_pod(manifest: list[dict[str, Any]], folder: Path, index: int) -> list[str]:
    """The lines that torchrun tells in the pod of an index, whose files are those of the ConfigMap."""
    for name, text in manifest[0]["data"].items():
        (folder / "launch").mkdir(exist_ok=True)
        (folder / "launch" / name).write_text(text)
    (container,) = manifest[-1]["spec"]["template"]["spec"]["containers"]
    command = [word.replace("/launch/", "./launch/") for word in container["command"]]
    return run(command, folder, JOB_COMPLETION_INDEX=str(index))


def test_kubernetes_starts_each_pod_with_its_rank(tmp_path: Path) -> None:
    manifest = list(yaml.safe_load_all(job(answered(), Scheduler.KUBERNETES).text))
    assert [described["kind"] for described in manifest] == ["ConfigMap", "Service", "Job"]
    spec = manifest[-1]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}} and container["image"] == IMAGE_STAND_IN
    (told,) = in_pod(manifest, tmp_path, 1)
    # The first pod's name in the Service's domain.
    assert told.partition("|")[0] == f"1 {NAME}-0.{spec['template']['spec']['subdomain']} "


def test_one_node_needs_no_service(tmp_path: Path) -> None:
    manifest = list(yaml.safe_load_all(job(answered(devices=8), Scheduler.KUBERNETES).text))
    assert [described["kind"] for described in manifest] == ["ConfigMap", "Job"]
    (told,) = in_pod(manifest, tmp_path, 0)
    assert "--standalone" in told


@pytest.mark.parametrize("devices", [8, 16])
def test_the_schemas_of_kubernetes_accept_the_manifest(devices: int) -> None:
    kinds = ask("kubernetes_validate", "kubernetes_manifest.py", job(answered(devices=devices), Scheduler.KUBERNETES).text)
    assert kinds[-1] == "Job"


def test_a_device_is_asked_for_by_its_makers_name() -> None:
    given = answered()
    (group,) = given.request.cluster.groups
    device = replace(group.node.device, calibration="mi300x")
    cluster = Cluster((replace(group, node=replace(group.node, device=device)),))
    given = AnsweredRequest(given.plan, replace(given.request, cluster=cluster))
    assert "amd.com/gpu: 8" in job(given, Scheduler.KUBERNETES).text


def test_a_hostile_name_runs_nothing(tmp_path: Path) -> None:
    given = answered(name=HOSTILE)
    batch_script(given, tmp_path, nodes=2)
    in_pod(list(yaml.safe_load_all(job(given, Scheduler.KUBERNETES).text)), tmp_path, 0)
    assert not list(tmp_path.rglob("PWNED"))


def test_what_can_not_be_placed_is_refused_with_what_to_do() -> None:
    with pytest.raises(ExportError, match="as many devices"):
        job(on_uneven_nodes(), Scheduler.KUBERNETES)
    plan, request = serving()
    with pytest.raises(ExportError, match="training plans"):
        job(AnsweredRequest(plan, request), Scheduler.SLURM, Launcher.VLLM)


def test_the_command_line_writes_the_job_beside_the_script(cli: Cli, tmp_path: Path) -> None:
    request = Path(__file__).parents[4] / "examples" / "llama-3.1-8b-8xh100.yaml"
    plan = str(tmp_path / "plan.json")
    assert cli("plan", str(request), "--no-store", "-o", plan) == 0, cli.err
    folder = tmp_path / "job"
    assert cli("export", plan, "--to", "megatron-lm", "--on", "slurm", "-o", str(folder)) == 0, cli.err
    assert {path.name for path in folder.iterdir()} == {"job.sbatch", "launch.sh"}
    assert cli("export", plan, "--to", "megatron-lm", "--on", "kubernetes") == 0
    assert [described["kind"] for described in yaml.safe_load_all(cli.out)] == ["ConfigMap", "Job"]
    assert cli("export", plan, "--to", "megatron-lm", "--on", "kubernetes", "--json") == 0
    assert cli.json()["job"]["submit"] == "kubectl apply -f job.yaml"
    assert cli("export", plan, "--to", "megatron-lm", "--on", "slrum") == 2
    assert "did you mean 'slurm'?" in cli.err
