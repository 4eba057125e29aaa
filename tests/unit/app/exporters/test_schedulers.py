"""Jobs of schedulers: the launch runs on every node with its rank, as a real shell and the schedulers' own schemas see it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.launching.exporters.launch import launch
from meshwright.app.launching.exporters.schedulers import JobFile, Scheduler, job_file
from meshwright.app.launching.exporters.schedulers.job import RAY, SKYPILOT, require_named
from meshwright.app.launching.exporters.schedulers.kubernetes import resource_of
from meshwright.app.launching.parts.stated import StatedServer
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine, Task
from meshwright.app.service.explaining.explain import Question, ReadCommand, explained
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.hardware import device
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.serving_load import FixedLength
from tests.attacks.planned import REQUESTS, planned
from tests.support.command_line import Cli
from tests.unit.app.exporters.plans import flags, serving, training
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
    starters = dict.fromkeys(("torchrun", "deepspeed", "accelerate", "trl", "vllm", "python"), TELLS)
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
    other = replace(group.node.device, calibration="mi300x")
    cluster = Cluster((replace(group, node=replace(group.node, device=other)),))
    given = AnsweredRequest(given.plan, replace(given.request, cluster=cluster))
    assert "amd.com/gpu: 8" in job(given, Scheduler.KUBERNETES).text


def test_a_device_that_borrows_its_calibration_is_not_asked_for_as_the_other() -> None:
    others = {"gaudi-3-128gb": "habana.ai/gaudi", "mi355x-288gb": "amd.com/gpu", "tpu-v6e-32gb": "google.com/tpu"}
    assert {name: resource_of(device(name)) for name in others} == others


def test_a_hostile_name_runs_nothing(tmp_path: Path) -> None:
    given = answered(name=HOSTILE)
    batch_script(given, tmp_path, nodes=2)
    in_pod(list(yaml.safe_load_all(job(given, Scheduler.KUBERNETES).text)), tmp_path, 0)
    in_task(given, tmp_path, Launcher.MEGATRON_LM, rank=0, addresses="10.0.0.1")
    assert not list(tmp_path.rglob("PWNED"))


def test_a_jobset_starts_each_pod_with_its_rank(tmp_path: Path) -> None:
    config, jobset = yaml.safe_load_all(job(answered(), Scheduler.JOBSET).text)
    assert (config["kind"], jobset["kind"], jobset["apiVersion"]) == ("ConfigMap", "JobSet", "jobset.x-k8s.io/v1alpha2")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert set(replicated) == {"name", "replicas", "template"}
    assert replicated["template"]["spec"]["completionMode"] == "Indexed"
    (told,) = in_pod([config, replicated["template"]], tmp_path, 1)
    assert told.partition("|")[0] == f"1 {NAME}-train-0-0.{NAME} "


def served(name: str = "llama-3.1-70b", **layout: Any) -> AnsweredRequest:
    plan, request = serving(name, **layout)
    return AnsweredRequest(replace(plan, digest=DIGEST), request)


SERVERS = {
    Launcher.VLLM: (ServingEngine.VLLM, ""),
    Launcher.SGLANG: (ServingEngine.SGLANG, "--host 0.0.0.0"),
    Launcher.TENSORRT_LLM: (ServingEngine.TENSORRT_LLM, "--host 0.0.0.0"),
}


@pytest.mark.parametrize("launcher", SERVERS)
def test_servers_of_a_node_are_a_deployment(launcher: Launcher) -> None:
    engine, said = SERVERS[launcher]
    given = served(replicas=4, tp=4, engine=engine)
    config, service, deployment = yaml.safe_load_all(job(given, Scheduler.KUBERNETES, launcher).text)
    assert deployment["kind"] == "Deployment" and deployment["spec"]["replicas"] == 4
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    assert server["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert server["ports"][0]["containerPort"] == service["spec"]["ports"][0]["targetPort"]
    assert said in config["data"]["launch.sh"] and set(config["data"]) == {*launch(given, launcher).files, "launch.sh"}


def test_replicas_of_one_server_are_one_pod() -> None:
    text = job(served(replicas=2, tp=4), Scheduler.KUBERNETES, Launcher.VLLM).text
    deployment = list(yaml.safe_load_all(text))[-1]
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (deployment["spec"]["replicas"], server["resources"]["limits"]["nvidia.com/gpu"]) == (1, 8)


def in_group(given: AnsweredRequest, template: str, folder: Path, index: int) -> list[str]:
    """The lines that vllm tells in the pod of an index of a LeaderWorkerSet."""
    config, _, described = yaml.safe_load_all(job(given, Scheduler.KUBERNETES, Launcher.VLLM).text)
    pod = described["spec"]["leaderWorkerTemplate"][template]
    address = {"LWS_LEADER_ADDRESS": f"{NAME}-0.{NAME}.default", "LWS_WORKER_INDEX": str(index)}
    for name, text in config["data"].items():
        (folder / "launch").mkdir(exist_ok=True)
        (folder / "launch" / name).write_text(text)
    (server,) = pod["spec"]["containers"]
    return run([word.replace("/launch/", "./launch/") for word in server["command"]], folder, **address)


def test_servers_of_several_nodes_are_a_leader_worker_set(tmp_path: Path) -> None:
    given = served(replicas=2, tp=8, pp=2, nodes=4)
    described = list(yaml.safe_load_all(job(given, Scheduler.KUBERNETES, Launcher.VLLM).text))[-1]
    spec = described["spec"]
    assert (described["kind"], spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == ("LeaderWorkerSet", 2, 2)
    (first,) = in_group(given, "leaderTemplate", tmp_path, 0)
    assert first.startswith(f"0 {NAME}-0.{NAME}.default |") and "--headless" not in first
    (tmp_path / "told").unlink()
    (second,) = in_group(given, "workerTemplate", tmp_path, 1)
    assert second.startswith(f"1 {NAME}-0.{NAME}.default |") and second.endswith("--headless")


def test_experts_over_nodes_count_the_first_rank_of_each(tmp_path: Path) -> None:
    given = served("deepseek-v3", tp=1, attention_dp=16, ep=16, nodes=2)
    (told,) = in_group(given, "workerTemplate", tmp_path, 1)
    assert "--data-parallel-size-local 8 --data-parallel-start-rank 8" in told


def test_sglang_meets_at_a_port() -> None:
    given = served(tp=8, pp=2, engine=ServingEngine.SGLANG)
    assert "MASTER_ADDR=$LWS_LEADER_ADDRESS:20000" in job(given, Scheduler.KUBERNETES, Launcher.SGLANG).text


def test_servers_that_mpi_starts_are_refused() -> None:
    with pytest.raises(ExportError, match="started by MPI"):
        job(served(tp=8, pp=2, engine=ServingEngine.TENSORRT_LLM), Scheduler.KUBERNETES, Launcher.TENSORRT_LLM)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("form", ["vllm-pools", "vllm-kinds", "sglang-pools"])
def test_servers_of_several_kinds_are_refused(form: str) -> None:
    plan, request = planned(form)
    with pytest.raises(ExportError, match="one kind of"):
        job(AnsweredRequest(plan, request), Scheduler.KUBERNETES, REQUESTS[form][0])


def with_name(given: AnsweredRequest, name: str) -> AnsweredRequest:
    plan, request = given.plan, given.request
    return AnsweredRequest(replace(plan, model=name), replace(request, model=replace(request.model, name=name)))


@pytest.mark.parametrize(("tp", "pp", "nodes"), [(4, 1, 1), (8, 2, 2)])
def test_a_hostile_name_runs_nothing_in_a_server(tp: int, pp: int, nodes: int, tmp_path: Path) -> None:
    given = with_name(served(tp=tp, pp=pp, nodes=nodes), HOSTILE)
    text = job(given, Scheduler.KUBERNETES, Launcher.VLLM).text
    config = next(iter(yaml.safe_load_all(text)))
    (tmp_path / "launch.sh").write_text(config["data"]["launch.sh"])
    (told,) = run(["sh", "launch.sh"], tmp_path, NODE_RANK="0", MASTER_ADDR="a", FIRST_RANK="0")
    assert f"./{HOSTILE}" in told and not list(tmp_path.rglob("PWNED"))


def test_the_schemas_of_kubernetes_accept_a_deployment() -> None:
    text = job(served(tp=4), Scheduler.KUBERNETES, Launcher.VLLM).text
    assert ask("kubernetes_validate", "kubernetes_manifest.py", text) == ["ConfigMap", "Service", "Deployment"]


def test_what_can_not_be_placed_is_refused_with_what_to_do() -> None:
    with pytest.raises(ExportError, match="as many devices"):
        job(on_uneven_nodes(), Scheduler.KUBERNETES)
    plan, request = serving()
    with pytest.raises(ExportError, match="training plans"):
        job(AnsweredRequest(plan, request), Scheduler.SLURM, Launcher.VLLM)


def in_task(given: AnsweredRequest, folder: Path, launcher: Launcher, *, rank: int, addresses: str) -> list[str]:
    """The lines that the launcher tells on a node of a SkyPilot task."""
    folder.mkdir(exist_ok=True)
    commands = yaml.safe_load(job(given, Scheduler.SKYPILOT, launcher).text)["run"]
    return run(["bash", "-c", commands], folder, SKYPILOT_NODE_RANK=str(rank), SKYPILOT_NODE_IPS=addresses)


def test_skypilot_starts_each_node_with_its_rank(tmp_path: Path) -> None:
    (told,) = in_task(answered(), tmp_path, Launcher.MEGATRON_LM, rank=1, addresses="10.0.0.1\n10.0.0.2")
    assert told.startswith("1 10.0.0.1 |--nnodes 2 --nproc-per-node 8")
    task = yaml.safe_load(job(answered(), Scheduler.SKYPILOT).text)
    assert (task["name"], task["num_nodes"], task["resources"]) == (NAME, 2, {"accelerators": {"H100": 8}})


def test_a_launcher_that_starts_the_other_nodes_starts_them_from_skypilots_first(tmp_path: Path) -> None:
    given = AnsweredRequest(*training(dp=16))
    (told,) = in_task(given, tmp_path, Launcher.DEEPSPEED, rank=0, addresses="10.0.0.1\n10.0.0.2")
    assert "--hostfile hostfile --num_nodes 2 --num_gpus 8" in told
    assert (tmp_path / "hostfile").read_text().splitlines() == ["10.0.0.1 slots=8", "10.0.0.2 slots=8"]
    commands = yaml.safe_load(job(given, Scheduler.SKYPILOT, Launcher.DEEPSPEED).text)["run"]
    other = tmp_path / "other"
    other.mkdir()
    environment = {"PATH": os.environ["PATH"], "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    subprocess.run(["bash", "-c", commands], cwd=other, env=environment, check=True, timeout=30)
    assert not (other / "hostfile").exists()


def test_skypilot_serves_with_leaders_and_followers(tmp_path: Path) -> None:
    given = served(replicas=2, tp=8, pp=2, nodes=4)
    task = yaml.safe_load(job(given, Scheduler.SKYPILOT, Launcher.VLLM).text)
    assert task["service"] == {"readiness_probe": "/health", "replicas": 2, "ports": 8000}
    assert (task["num_nodes"], task["resources"]) == (2, {"accelerators": {"H100": 8}, "ports": 8000})
    for rank, ending in ((0, "--port 8000"), (1, "--headless")):
        (told,) = in_task(given, tmp_path / str(rank), Launcher.VLLM, rank=rank, addresses="10.0.0.1\n10.0.0.2")
        assert told.startswith(f"{rank} 10.0.0.1 |") and told.endswith(ending)


@pytest.mark.slow
def test_skypilot_reads_the_task() -> None:
    text = job(answered(), Scheduler.SKYPILOT).text
    read = ask("sky", "skypilot_task.py", text)
    assert (read["name"], read["nodes"], read["accelerators"], read["servers"]) == (NAME, 2, {"H100": 8}, None)
    assert read["run"] == yaml.safe_load(text)["run"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", SERVERS)
def test_skypilot_reads_the_service(launcher: Launcher) -> None:
    given = served(replicas=4, tp=4, engine=SERVERS[launcher][0])
    # A server of vLLM's on one node has replicas of its own.
    text = job(with_name(given, HOSTILE), Scheduler.SKYPILOT, launcher).text
    read = ask("sky", "skypilot_task.py", text)
    assert (read["servers"], read["probe"], read["accelerators"]) == (4, "/health", {"H100": 4})
    assert read["ports"] == [str(yaml.safe_load(text)["service"]["ports"])]


def test_devices_that_clouds_have_no_name_for_are_refused() -> None:
    given = answered()
    (group,) = given.request.cluster.groups
    as_large = replace(device("ascend-910b"), memory_bytes=group.node.device.memory_bytes)
    cluster = Cluster((replace(group, node=replace(group.node, device=as_large)),))
    with pytest.raises(ExportError, match="no name for the devices"):
        job(AnsweredRequest(given.plan, replace(given.request, cluster=cluster)), Scheduler.SKYPILOT)


@pytest.mark.parametrize("names", [SKYPILOT, RAY])
def test_names_of_devices_are_of_the_catalogue(names: dict[str, str]) -> None:
    assert all(device(name).name == name for name in names)


def test_a_device_of_ones_own_is_named_by_its_calibration_and_memory() -> None:
    own = replace(device("a100-sxm-40gb"), name="mine")
    found = require_named(own, SKYPILOT, where="SkyPilot")
    assert found.name == "A100" and "own devices" in found.assumptions[0]


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
    assert cli("export", plan, "--to", "slurm") == 0 and "#SBATCH" in cli.out
    assert cli("export", plan, "--to", "slurm", "--on", "kubernetes") == 2 and "one scheduler" in cli.err
    assert cli("export", plan, "--to", "megatron") == 2 and "megatron-lm" in cli.err
    assert cli("export", plan, "--to", "dynamo") == 2 and "serving plans" in cli.err
    assert cli("export", plan, "--to", "megatron-lm", "--on", "slrum") == 2
    assert "did you mean 'slurm'?" in cli.err


@pytest.mark.parametrize("launcher", SERVERS)
def test_servers_of_a_node_are_an_inference_service(launcher: Launcher, tmp_path: Path) -> None:
    given = with_name(served(replicas=4, tp=4, engine=SERVERS[launcher][0]), HOSTILE)
    text = job(given, Scheduler.KSERVE, launcher).text
    config, described = yaml.safe_load_all(text)
    predictor = described["spec"]["predictor"]
    (server,) = predictor["containers"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (4, 4)
    assert server["resources"] == {"limits": {"nvidia.com/gpu": 4}} and server["name"] == "kserve-container"
    assert predictor["volumes"][0]["configMap"]["name"] == config["metadata"]["name"] == NAME


def test_the_records_of_kserve_take_the_inference_service() -> None:
    text = job(with_name(served(replicas=4, tp=4), HOSTILE), Scheduler.KSERVE, Launcher.VLLM).text
    read = ask("kserve", "kserve_records.py", text)
    assert read["kinds"] == ["ConfigMap", "InferenceService"]
    assert read["refused"] == ["spec.predictor.containers[0].gpus", "spec.predictor.minReplicas"]


def test_servers_of_several_nodes_are_no_inference_service() -> None:
    with pytest.raises(ExportError, match="one node each"):
        job(served(replicas=2, tp=8, pp=2, nodes=4), Scheduler.KSERVE, Launcher.VLLM)


GOLDEN = Path(__file__).parent / "golden"
"""Texts of schedulers that serve, named ``on-SCHEDULER``: what a plan of two replicas, or of two pools, is on each."""


@pytest.mark.parametrize("scheduler", ["dynamo", "llm-d", "ray-serve", "kserve", "skypilot", "kubernetes"])
def test_golden_jobs(scheduler: str) -> None:
    """To accept a change, write the new text into the file and read the difference."""
    text = job(served(replicas=2, tp=4, pp=2, layers=[39, 41]), Scheduler(scheduler), Launcher.VLLM).text
    assert text == (GOLDEN / f"on-{scheduler}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheduler", [Scheduler.DYNAMO, Scheduler.LLM_D])
def test_golden_pools(scheduler: Scheduler) -> None:
    plan, request = planned("vllm-pools")
    text = job(AnsweredRequest(replace(plan, digest=DIGEST), request), scheduler, Launcher.VLLM).text
    assert text == (GOLDEN / f"on-{scheduler.value}-pools.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["vllm-pools", "sglang-pools"])
def test_dynamo_has_a_component_a_pool(form: str) -> None:
    plan, request = planned(form)
    read = ask("dynamo", "dynamo_graph.py", job(AnsweredRequest(plan, request), Scheduler.DYNAMO, REQUESTS[form][0]).text)
    assert read["unknown"] == [] and set(read["components"]) == {"Frontend", "prefill", "decode"}
    assert isinstance(plan.layout, Pools)
    for role, workers in (("prefill", plan.layout.prefill_workers), ("decode", plan.layout.decode_workers)):
        words = read["components"][role]["words"]
        assert words[words.index("--disaggregation-mode") + 1] == role
        assert read["components"][role]["replicas"] == workers.count


def test_llm_d_writes_the_degrees_that_it_knows_and_no_others() -> None:
    values = yaml.safe_load(job(served("deepseek-v3", tp=1, attention_dp=8, ep=8), Scheduler.LLM_D, Launcher.VLLM).text)
    (server,) = values["decode"]["containers"]
    assert values["decode"]["parallelism"] == {"tensor": 1, "data": 8, "dataLocal": 8, "workers": 1}
    assert not {"--tensor-parallel-size", "--data-parallel-size", "--port"} & set(server["args"])
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "8"} and values["prefill"] == {"create": False}


def test_llm_d_takes_names_of_the_hub_alone() -> None:
    """Its chart reads the name as a template."""
    with pytest.raises(ExportError, match="a name of the Hub"):
        job(with_name(served(tp=4), "{{ .Values.x }}"), Scheduler.LLM_D, Launcher.VLLM)
    with pytest.raises(ExportError, match="one node each"):
        job(served(replicas=2, tp=8, pp=2, nodes=4), Scheduler.LLM_D, Launcher.VLLM)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("scheduler", ["dynamo", "llm-d", "ray-serve", "kserve", "skypilot", "kubernetes"])
@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 4, "pp": 2}], ids=str)
def test_what_is_written_is_read_back(scheduler: str, layout: dict[str, Any]) -> None:
    given = served(prompt_tokens=FixedLength(200), output_tokens=FixedLength(20), nodes=1, **layout)
    text = job(given, Scheduler(scheduler), Launcher.VLLM).text
    found = explained(ReadCommand(text, read_command(text), Question({}, ()), given.request))
    assert found.problems == () and found.plan is not None
    assert isinstance(given.plan.layout, Replicas) and isinstance(found.plan.layout, Replicas)
    own, read = given.plan.layout, found.plan.layout
    assert (read.axes, [stage.blocks for stage in read.stages]) == (own.axes, [stage.blocks for stage in own.stages])
    assert read.load.max_num_seqs == own.load.max_num_seqs


@pytest.mark.parametrize("scheduler", ["dynamo", "ray-serve", "skypilot", "kubernetes"])
def test_servers_of_several_nodes_are_read_back(scheduler: str) -> None:
    given = served(tp=8, pp=2, nodes=2)
    read = read_command(job(given, Scheduler(scheduler), Launcher.VLLM).text)
    assert isinstance(read, StatedServer)
    if scheduler != "ray-serve":
        assert read.job is not None and (read.job.nodes, read.job.devices) == (2, 8)


def test_what_only_serves_starts_no_training() -> None:
    with pytest.raises(ExportError, match="serving plans"):
        job(answered(), Scheduler.KSERVE)


def test_ray_reads_the_application() -> None:
    given = served(replicas=2, tp=8, pp=2, nodes=4)
    read = ask("ray", "ray_serve_app.py", job(with_name(given, HOSTILE), Scheduler.RAY_SERVE, Launcher.VLLM).text)
    assert (read["name"], read["builder"], read["replicas"], read["accelerator"]) == (NAME, "build_openai_app", 2, "H100")
    assert (read["engine"]["tensor_parallel_size"], read["engine"]["pipeline_parallel_size"]) == (8, 2)
    assert read["model"] == f"./{HOSTILE}"


def arguments_of(given: AnsweredRequest) -> dict[str, Any]:
    (application,) = yaml.safe_load(job(given, Scheduler.RAY_SERVE, Launcher.VLLM).text)["applications"]
    args = application["args"]
    config = args["llm_config"] if "llm_config" in args else args["llm_configs"][0]
    return {"builder": application["import_path"], **config}


def test_ray_starts_ranks_that_share_experts_together() -> None:
    config = arguments_of(served("deepseek-v3", tp=1, attention_dp=16, ep=16, nodes=2))
    assert config["builder"].endswith(":build_dp_openai_app")
    # Ray multiplies replicas by ranks.
    assert (config["engine_kwargs"]["data_parallel_size"], config["deployment_config"]) == (16, {"num_replicas": 1})


def test_ray_places_replicas_of_one_server_one_by_one() -> None:
    config = arguments_of(served(replicas=2, tp=4))
    assert "data_parallel_size" not in config["engine_kwargs"] and config["deployment_config"] == {"num_replicas": 2}


@pytest.mark.parametrize("nodes", [1, 4])
def test_arguments_of_ray_are_the_flags_of_the_command(nodes: int) -> None:
    speculation = Speculation(3, 0.8, Draft(DraftMethod.EAGLE3, 0.05, model="own/draft"))
    alone, uneven = {"speculation": speculation}, {"layers": (42, 38), "pp": 2, "replicas": 2}
    given = served(tp=8, nodes=nodes, **(alone if nodes == 1 else uneven))
    config = arguments_of(given)
    said = flags(launch(given, Launcher.VLLM))
    placed = {"--port", "--nnodes", "--node-rank", "--master-addr"}
    expected = {name.removeprefix("--").replace("-", "_"): values for name, values in said.items() if name not in placed}
    assert set(config["engine_kwargs"]) == set(expected)
    for name, values in expected.items():
        told = config["engine_kwargs"][name]
        assert told is True if not values else told == json.loads(values[0]) if not isinstance(told, str) else told == values[0]
    assert config.get("runtime_env", {}).get("env_vars", {}) == ({} if nodes == 1 else {"VLLM_PP_LAYER_PARTITION": "42,38"})


@pytest.mark.parametrize(("launcher", "flag"), [(Launcher.VLLM, "--model"), (Launcher.SGLANG, "--model-path")])
def test_dynamos_records_take_the_graph(launcher: Launcher, flag: str) -> None:
    given = served(replicas=2, tp=8, pp=2, nodes=4, engine=SERVERS[launcher][0])
    read = ask("dynamo", "dynamo_graph.py", job(given, Scheduler.DYNAMO, launcher).text)
    assert read["unknown"] == [] and read["components"]["Frontend"]["replicas"] == 1
    worker = read["components"]["worker"]
    assert (worker["replicas"], worker["nodes"], worker["resources"]) == (2, 2, {"limits": {"nvidia.com/gpu": "8"}})
    # Its operator says what nodes are told, its worker has no port of its own.
    assert worker["words"][:5] == ["python3", "-m", f"dynamo.{launcher.value}", flag, "meta-llama/Llama-3.1-70B"]
    assert not {"--port", "--nnodes", "--node-rank", "--headless"} & set(worker["words"])


def test_kubernetes_expands_nothing_in_a_name_of_dynamos() -> None:
    hostile = "$(HOSTNAME) $$x; touch PWNED"
    described = yaml.safe_load(job(with_name(served(replicas=2, tp=4), hostile), Scheduler.DYNAMO, Launcher.VLLM).text)
    (worker,) = described["spec"]["components"][1]["podTemplate"]["spec"]["containers"]
    assert worker["args"][1] == f"./{hostile}".replace("$", "$$") and worker["resources"]["limits"]["nvidia.com/gpu"] == "4"
    with pytest.raises(ExportError, match="to a shell"):
        job(with_name(served(tp=8, pp=2), hostile), Scheduler.DYNAMO, Launcher.VLLM)


@pytest.mark.parametrize("scheduler", [Scheduler.RAY_SERVE, Scheduler.DYNAMO, Scheduler.LLM_D])
def test_engines_that_a_scheduler_does_not_run_are_refused(scheduler: Scheduler) -> None:
    given = served(replicas=4, tp=4, engine=ServingEngine.TENSORRT_LLM)
    with pytest.raises(ExportError, match=r"search\.engine vllm"):
        job(given, scheduler, Launcher.TENSORRT_LLM)
    other = served(replicas=4, tp=4)
    (group,) = other.request.cluster.groups
    cluster = Cluster((replace(group, node=replace(group.node, device=device("gaudi-3"))),))
    with pytest.raises(ExportError, match="--on kubernetes"):
        job(AnsweredRequest(other.plan, replace(other.request, cluster=cluster)), scheduler, Launcher.VLLM)


@pytest.mark.parametrize("name", ["dynamo", "llm-d", "ray-serve", "kserve", "skypilot"])
def test_a_scheduler_of_servers_is_planned_for_as_a_launcher(name: str) -> None:
    line = OneLine("qwen3-8b", gpus="8xH100", task=Task.SERVE, isl="2000", osl="300", rate="4", launcher=name)
    assert request_of_line(line)["search"] == {"launcher": "vllm"} and name in list(Scheduler)
