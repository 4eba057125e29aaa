"""Forms in which people write launch commands: wrappers, manifests and files, each read as what it starts."""

from __future__ import annotations

import json

import pytest

from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedServer, StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.costmodels.errors import InvalidInputError

COMPOSE = """
services:
  proxy:
    image: nginx:1.27
    ports: ["80:80"]
  server:
    image: vllm/vllm-openai:v0.19.0
    command: >
      --model Qwen/Qwen3-32B
      --tensor-parallel-size ${TP:-4}
      --max-model-len 8192
    environment:
      - HF_TOKEN=x
    ipc: host
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, count: 4, capabilities: [gpu]}
"""
COMPOSE_LIST = """
name: serving
services:
  sglang:
    image: lmsysorg/sglang:latest
    entrypoint: ["python3", "-m", "sglang.launch_server"]
    command: [--model-path, Qwen/Qwen3-32B, --tp, "4", --host, 0.0.0.0]
"""
COMPOSE_SHELL = """
version: "3.8"
services:
  server:
    image: vllm/vllm-openai
    entrypoint: bash -c
    command:
      - |
        pip install -q blobfile
        vllm serve $$MODEL --tensor-parallel-size 4
    environment: {MODEL: Qwen/Qwen3-32B}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 1
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
        - name: vllm
          image: vllm/vllm-openai:latest
          command: ["/bin/sh", "-c"]
          args: ["vllm serve $MODEL --tensor-parallel-size $(TP) --max-model-len 4096"]
          env:
            - {name: TP, value: "4"}
            - {name: MODEL, value: Qwen/Qwen3-32B}
            - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
          resources: {limits: {nvidia.com/gpu: "4"}}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {ports: [{port: 8000}]}
"""
ARGUMENTS = """
apiVersion: v1
kind: Pod
spec:
  initContainers:
    - {name: load, image: busybox, command: [sh, -c, "echo loading"]}
  containers:
    - name: vllm
      image: vllm/vllm-openai
      args: ["--model=Qwen/Qwen3-32B", "--tensor-parallel-size=4"]
"""
LEADER = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: vllm/vllm-openai
            command:
              - sh
              - -c
              - "bash multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
                 python3 -m vllm.entrypoints.openai.api_server --port 8080 --model Qwen/Qwen3-32B --tensor-parallel-size 4
                 --pipeline_parallel_size 2"
            resources: {limits: {nvidia.com/gpu: "4"}}
    workerTemplate:
      spec:
        containers:
          - {name: worker, image: vllm/vllm-openai, command: [sh, -c, "bash multi-node-serving.sh worker"]}
"""
INFERENCE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: qwen}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: ["--model_name=qwen", "--tensor-parallel-size=4"]
      storageUri: hf://Qwen/Qwen3-32B
      resources: {limits: {nvidia.com/gpu: "4"}}
"""
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Frontend: {componentType: frontend, replicas: 1}
    Worker:
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "4"]
"""
SCRIPT = """#!/bin/bash
set -euxo pipefail
: "${TP:=4}"
: ${LEN:=8192}
declare -a ARGS=(--max-model-len "$LEN")
ARGS+=(--max-num-seqs $((LEN / 64)))
MODEL=${1:-Qwen/Qwen3-32B}
serve() {
  local model=$1; shift
  vllm serve "$model" --tensor-parallel-size ${TP} "$@"
}
serve "$MODEL" "${ARGS[@]}"
"""
HERE = """cat <<'EOF' > /tmp/flags.yaml
tensor-parallel-size: 4
enable-expert-parallel: false
no-enable-prefix-caching: true
EOF
vllm serve Qwen/Qwen3-32B --config /tmp/flags.yaml --max-model-len 8192
"""
SLURM = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:h100:4
TP=$SLURM_GPUS_ON_NODE
ARGS_STR="--tensor-parallel-size ${TP} --max-model-len 8192"
srun --container-image=vllm/vllm-openai bash -c "cd /work && vllm serve Qwen/Qwen3-32B ${ARGS_STR}"
"""
SERVE = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
IMAGE = "--model Qwen/Qwen3-32B --tensor-parallel-size 4"


@pytest.mark.parametrize(
    ("text", "launcher"),
    [
        (
            f"docker run --runtime nvidia --gpus all -v ~/.cache:/root/.cache -e A=b -p 80:80 -it vllm/vllm-openai {IMAGE}",
            "vllm",
        ),
        (
            f"docker run -d --rm --gpus '\"device=0,1,2,3\"' --shm-size=1g r.io:5000/vllm/vllm-openai:v1@sha256:0a {IMAGE}",
            "vllm",
        ),
        ("podman run --device nvidia.com/gpu=all vllm/vllm-openai Qwen/Qwen3-32B -tp 4", "vllm"),
        (f"sudo docker run --entrypoint python3 img -m vllm.entrypoints.openai.api_server {IMAGE}", "vllm"),
        (f"docker run --entrypoint /bin/bash vllm/vllm-openai -c 'ray start --head && {SERVE}'", "vllm"),
        ("docker run lmsysorg/sglang:dev python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4", "sglang"),
        ("docker run -e MODEL=Qwen/Qwen3-32B img sh -c 'vllm serve $MODEL -tp 4'", "vllm"),
        (f"docker exec -it server {SERVE}", "vllm"),
        (f'bash -c "ray start --head --port=6379 && {SERVE}"', "vllm"),
        ("TP=4 bash -lc 'vllm serve Qwen/Qwen3-32B -tp $TP'", "vllm"),
        (f"bash <<EOF\nsource x\n{SERVE}\nEOF", "vllm"),
        (f"sudo -E nohup numactl --membind 0 env A=b {SERVE} > log 2>&1 &", "vllm"),
        (f"conda run -n serving --no-capture-output {SERVE}", "vllm"),
        (f"uv run --with vllm {SERVE}", "vllm"),
        (f"poetry run {SERVE}", "vllm"),
        (f"timeout 3600 {SERVE}", "vllm"),
        (f'CMD="{SERVE}"\neval $CMD', "vllm"),
        (COMPOSE, "vllm"),
        (COMPOSE_LIST, "sglang"),
        (COMPOSE_SHELL, "vllm"),
        (DEPLOYMENT, "vllm"),
        (ARGUMENTS, "vllm"),
        (LEADER, "vllm"),
        (INFERENCE, "vllm"),
        (DYNAMO, "vllm"),
        (SCRIPT, "vllm"),
        (HERE, "vllm"),
        (SLURM, "vllm"),
        ("for TP in 4 8; do\n  vllm serve Qwen/Qwen3-32B -tp $TP\ndone", "vllm"),
        ("model: Qwen/Qwen3-32B\ntensor-parallel-size: 4\nmax-model-len: 8192\n", "vllm"),
        ("model_path: Qwen/Qwen3-32B\ntp_size: 4\nenable_metrics: true\n", "sglang"),
        ("python3 -m dynamo.sglang --model-path Qwen/Qwen3-32B --tp-size 4 --skip-tokenizer-init", "sglang"),
        ("python3 -m dynamo.trtllm --model-path Qwen/Qwen3-32B --tensor-parallel-size 4 --max-batch-size 64", "tensorrt-llm"),
        ("trtllm-serve Qwen/Qwen3-32B --tp_size 4 --max_batch_size 64", "tensorrt-llm"),
        ("trtllm-serve serve Qwen/Qwen3-32B --backend pytorch --tp 4 --pp_size 1 --max_num_tokens 4096", "tensorrt-llm"),
        ("mpirun -n 4 --allow-run-as-root trtllm-llmapi-launch trtllm-serve Qwen/Qwen3-32B --tp_size 4", "tensorrt-llm"),
        ("sglang serve --model-path Qwen/Qwen3-32B --tensor-parallel-size 4", "sglang"),
        ("python -m sglang_router.launch_server --model-path Qwen/Qwen3-32B --tp-size 4", "sglang"),
    ],
)
def test_a_server_is_read_in_every_form(text: str, launcher: str) -> None:
    found = read_command(text)
    assert isinstance(found, StatedServer)
    assert (found.launcher.value, found.model, found.flags.tp) == (launcher, "Qwen/Qwen3-32B", 4)
    assert not [flag for flag in found.given if flag.standing is Standing.UNKNOWN]


def test_what_a_manifest_asks_for_is_the_cluster() -> None:
    assert [read_command(text).job for text in (ARGUMENTS, COMPOSE_LIST)] == [None, None]
    deployed = read_command(DEPLOYMENT).job
    assert deployed is not None and deployed.cluster == "4xh100"
    grouped, composed = read_command(LEADER).job, read_command(COMPOSE).job
    assert grouped is not None and (grouped.nodes, grouped.devices) == (2, 4)
    assert composed is not None and (composed.nodes, composed.devices, composed.cluster) == (1, 4, None)


def test_values_of_a_script_are_worked_out() -> None:
    found = read_command(SCRIPT)
    assert isinstance(found, StatedServer)
    assert (found.flags.longest, found.flags.sequences) == (8192, 128)


def test_files_of_servers() -> None:
    files = LaunchFiles({"v.yaml": "model: a/b\ntensor-parallel-size: 4\nenable-expert-parallel: true\nmax_num_seqs: 32\n"})
    found = read_command("vllm serve --config v.yaml --max-num-seqs 64", files)
    assert isinstance(found, StatedServer)
    assert (found.model, found.flags.tp, found.flags.ep, found.flags.sequences) == ("a/b", 4, 0, 64)
    # TensorRT-LLM's file holds over its command.
    further = "enable_attention_dp: true\nmax_batch_size: 32\nkv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8}\n"
    files = LaunchFiles({"x.yml": further})
    found = read_command("trtllm-serve a/b --tp_size 8 --max_batch_size 64 --extra_llm_api_options /c/x.yml", files)
    assert isinstance(found, StatedServer)
    assert (found.flags.sequences, found.flags.memory_share, found.flags.attention_apart) == (32, 0.8, True)
    missing = read_command("trtllm-serve a/b --tp_size 8 --extra_llm_api_options /c/x.yml")
    assert "/c/x.yml was not given" in missing.notes[0] and "--with" in missing.notes[0]


SIZES = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --micro-batch-size 1 --global-batch-size 16 "
    "--vocab-size 32000 --max-position-embeddings 1024"
)


@pytest.mark.parametrize(
    "text",
    [
        "bash -c 'torchrun --nproc_per_node 8 pretrain_gpt.py {}'",
        "docker run nvcr.io/nvidia/pytorch:25.01-py3 torchrun --nproc_per_node 8 pretrain_gpt.py {}",
        "uv run torchrun --nproc_per_node 8 pretrain_gpt.py {}",
        'N=$((2 * 4))\nsrun bash -c "torchrun --nproc_per_node ${{N}} pretrain_gpt.py {}"',
        "run() {{ torchrun --nproc_per_node $1 pretrain_gpt.py {}; }}\nrun 8",
    ],
)
def test_training_is_read_in_wrappers(text: str) -> None:
    found = read_command(text.format(SIZES))
    assert isinstance(found, StatedTraining)
    assert (found.world, found.global_batch) == (8, 16)


def test_scripts_that_were_given_are_followed() -> None:
    files = LaunchFiles({"env.sh": "export TP=4\n", "serve.sh": "vllm serve $1 -tp $TP\n"})
    found = read_command("source env.sh\nbash serve.sh Qwen/Qwen3-32B", files)
    assert isinstance(found, StatedServer)
    assert (found.model, found.flags.tp) == ("Qwen/Qwen3-32B", 4)


def test_what_starts_no_launcher_is_named_with_its_line() -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_command("set -euxo pipefail\npip install x\nexport A=b\npython serve_it.py --port 80\n")
    assert refused.value.given == "python serve_it.py --port 80"
    assert "line 4" in refused.value.problem
    with pytest.raises(InvalidInputError) as refused:
        read_command("A=1\nB='x\n")
    assert refused.value.given == "line 2"


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Service\nspec: {ports: [{port: 80}]}\n",
        "services:\n  a: {image: nginx}\n",
        "apiVersion: v1\nkind: Pod\nspec: {containers: 3}\n",
        "a: 1\n---\nb: 2\n",
    ],
)
def test_manifests_without_a_launcher(text: str) -> None:
    with pytest.raises(InvalidInputError):
        read_command(text)


def test_variables_of_manifests_do_not_grow_without_end() -> None:
    container = {"command": ["sh", "-c", "$(A)" * 10_000], "env": [{"name": "A", "value": "x" * 10_000}]}
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}})
    with pytest.raises(InvalidInputError, match="longer than"):
        read_command(text)
