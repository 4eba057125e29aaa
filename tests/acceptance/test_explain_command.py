"""``meshwright explain``: what a launch command does."""

from __future__ import annotations

import pytest

from tests.support.command_line import Cli

OPTIONS = ("--gpus", "8xH100", "--isl", "200", "--osl", "20", "--rate", "4", "--objective", "devices", "--as-given")
COMMAND = ("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "4", "--port", "80", "--enforce-eager", "--foo", "bar")


def test_a_command_is_explained_on_a_page(cli: Cli) -> None:
    assert cli("explain", *OPTIONS, "--", *COMMAND) == 0
    page = cli.out
    for words in ("Starts and fits", "P95 TTFT", "4 devices", "-tp 4", "--foo bar", "steps without CUDA graphs", "--port 80"):
        assert words in page
    places = [page.index(head) for head in ("Read:", "Not in the figures:", "Not known", "Ignored")]
    assert places == sorted(places)


def test_a_file_is_explained_as_one_document(cli: Cli) -> None:
    file = cli.folder / "launch.sh"
    file.write_text("vllm serve Qwen/Qwen3-8B \\\n  -tp 3\n")
    assert cli("explain", *OPTIONS, "--json", str(file)) == 1
    document = cli.json()
    assert document["schema"] == "meshwright.explanation/1"
    assert document["verdict"] == "does not start"
    assert document["problems"] == ["--tensor-parallel-size 3: the model's 32 attention heads do not divide by 3"]
    assert document["request"]["workload"]["kind"] == "serving"


def test_a_strangers_text_is_quoted_and_never_run(cli: Cli) -> None:
    trap = cli.folder / "trap"
    hostile = f"vllm serve Qwen/Qwen3-8B -tp 4 --foo '\x1b[31m$(touch {trap})' `touch {trap}` [bold]x[/bold]"
    file = cli.folder / "launch.sh"
    file.write_text(hostile)
    assert cli("explain", *OPTIONS, str(file)) == 0
    page = cli.out
    assert "\x1b" not in page and "$(touch" in page
    assert not trap.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the launch command is missing"),
        (("no-such-file",), "can't be read"),
        (("--", "make", "coffee"), "no launch command that is known"),
        (("--", "vllm", "serve", "no/such"), "no/such"),
    ],
)
def test_bad_input_says_what_to_do(words: tuple[str, ...], message: str, cli: Cli) -> None:
    assert cli("explain", *OPTIONS, *words) == 2
    assert message in cli.err


def test_a_slow_run_is_explained_on_a_page_and_in_the_document(cli: Cli) -> None:
    measured = ("--measured", "80tok/s", "--measured", "tpot 30ms")
    assert cli("explain", *OPTIONS, *measured, "--", *COMMAND) == 0
    page = " ".join(cli.out.split())
    for words in (
        "outside of the band",
        "1. steps run without CUDA graphs",
        "check: the log of the start",
        "meshwright observe",
    ):
        assert words in page
    assert cli("explain", *OPTIONS, *measured, "--json", "--", *COMMAND) == 0
    told = cli.json()["measured"]
    assert [each["given"] for each in told["compared"]] == ["tpot 30ms", "80tok/s"] and not told["as_predicted"]
    assert "no-cuda-graphs" in [cause["name"] for cause in told["causes"]]


def test_a_run_as_predicted_says_what_limits_it(cli: Cli) -> None:
    assert cli("explain", *OPTIONS, "--measured", "80tok/s", "--", *COMMAND) == 0
    page = " ".join(cli.out.split())
    assert "As predicted: nothing to look for. A decode step takes" in page and "What would explain" not in page


def test_a_measurement_that_is_not_understood_says_how_to_write_one(cli: Cli) -> None:
    assert cli("explain", *OPTIONS, "--measured", "fast", "--", *COMMAND) == 2
    assert "840tok/s/gpu" in cli.err


def test_a_folder_is_a_script_and_the_files_that_it_names(cli: Cli) -> None:
    folder = cli.folder / "run"
    folder.mkdir()
    (folder / "llama.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n[activation_checkpoint]\nmode = "full"\n'
    )
    (folder / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:h100:8\n"
        "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 -m torchtitan.train --job.config_file ./llama.toml\n"
    )
    assert cli("explain", "--as-given", "--json", str(folder)) == 0
    document = cli.json()
    assert (document["launcher"], document["plan"]["devices"]) == ("torchtitan", 16)
    assert document["request"]["workload"]["global_batch"] == 16
    (folder / "llama.toml").unlink()
    assert cli("explain", "--as-given", str(folder)) == 2
    assert "llama.toml" in cli.err and "was not given" in cli.err
