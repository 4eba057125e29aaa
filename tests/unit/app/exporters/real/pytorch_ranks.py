"""Run by an interpreter that has PyTorch: the exported program on one process, and on as many as each plan has ranks.

Reads {"script": text, "plans": [plan, ...]}; answers a report a plan, and one of all degrees 1 for each. Processes are forked,
so that PyTorch is imported once.
"""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # which each rank would import by itself

question = json.loads(sys.stdin.read())
folder = Path(tempfile.mkdtemp())
os.chdir(folder)
sys.path.insert(0, str(folder))
(folder / "train.py").write_text(question["script"], encoding="utf-8")
torch.set_num_threads(1)
train = __import__("train")


def alone(plan):
    """The plan of one process: the whole model, every degree 1."""
    layers = plan["model"]["layers"]
    return plan | {
        "axes": {"dp": 1, "tp": 1, "pp": 1},
        "shard_ranks": None,
        "recompute": False,
        "sequence_parallel": False,
        "microbatch": {"size": plan["global_batch"], "count": 1},
        "parts": [{"layers": [0, layers], "embedding": True, "head": True}],
        "parts_of_rank": [[0]],
    }


def rank_of(number, world, port, name):
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    sys.argv = ["train.py", "--plan", f"{name}.json", "--steps", "2", "--report", f"{name}.report"]
    try:
        train.main()
    except BaseException:
        (folder / f"{name}.error.{number}").write_text(traceback.format_exc())
        raise


def report(plan, name):
    (folder / f"{name}.json").write_text(json.dumps(plan))
    world = plan["axes"]["dp"] * plan["axes"]["tp"] * plan["axes"]["pp"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_of, args=(number, world, port, name)) for number in range(world)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(100)
        if each.is_alive():
            each.kill()
    if any(each.exitcode for each in ranks):
        errors = sorted(folder.glob(f"{name}.error.*"))
        return {"error": errors[0].read_text()[-1500:] if errors else "a process ended without a word"}
    return json.loads((folder / f"{name}.report").read_text())


answers = []
singles = {}
for index, plan in enumerate(question["plans"]):
    one = alone(plan)
    key = json.dumps(one, sort_keys=True)
    if key not in singles:
        singles[key] = report(one, f"one{index}")
    answers.append({"one": singles[key], "ranks": report(plan, f"plan{index}")})
print("ANSWER" + json.dumps(answers))
