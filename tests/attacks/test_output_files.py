"""Files that commands write: nothing but a regular file is replaced, and a full disk or a kill leaves the old one whole.

Options are found by walking the registered commands, so that one added tomorrow is refused here until it is safe.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from meshwright.app.base.output_files import OutputFile, write_output, write_outputs
from meshwright.app.cli.main import cli as registered
from meshwright.app.cli.options import input_path, output_file, output_file_or_folder, output_folder, output_folder_of_many
from meshwright.app.evidence.measuring.sample_files import write_samples
from meshwright.app.regression.lock import LOCK_NAME
from meshwright.costmodels.errors import PlanFileError
from tests.attacks.planned import SERVED
from tests.support.command_line import Cli
from tests.support.requests_given import training
from tests.unit.app.validation.tables import write_table
from tests.unit.costmodels.measurements import toy_samples

OLD = "what was there before\n"
FEW_LAYOUTS = {"tp": [1, 2], "pp": [1, 2], "cp": [1], "microbatch": [1], "zero_stages": [1]}
"""Restrictions that leave a search nothing to do: what is written does not depend on how it was found."""
FILE_METAVARS = {"FILE", "DIR"}
SMALL_DISK_BYTES = 64 * 2**10


class Option(NamedTuple):
    """An option that names what a command writes."""

    command: tuple[str, ...]
    name: str
    is_folder: bool

    @property
    def id(self) -> str:
        return " ".join((*self.command, self.name))


def every_option() -> Iterator[tuple[tuple[str, ...], OptionInfo, type]]:
    """Every option of every registered command, with the words that call the command and the option's type."""

    def walk(group: typer.Typer, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], OptionInfo, type]]:
        for command in group.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__.replace("_", "-")
            for hint in get_type_hints(command.callback, include_extras=True).values():
                kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
                yield from (((*words, name), extra, kind) for extra in extras if isinstance(extra, OptionInfo))
        for inner in group.registered_groups:
            assert inner.typer_instance is not None and inner.name is not None
            yield from walk(inner.typer_instance, (*words, inner.name))

    return walk(registered, ())


def names_of(option: OptionInfo) -> tuple[str, ...]:
    """The names of an option; Typer takes the first for a default until it reads the command."""
    return tuple(name for name in (str(option.default), *(option.param_decls or ())) if name.startswith("-"))


OUTPUTS = [
    Option(words, names_of(option)[0], option.parser not in (output_file, output_file_or_folder))
    for words, option, _ in every_option()
    if option.parser in (output_file, output_file_or_folder, output_folder, output_folder_of_many)
]
FILES = [option for option in OUTPUTS if not option.is_folder]
OF_MANY = [
    Option(words, names_of(option)[0], True) for words, option, _ in every_option() if option.parser is output_folder_of_many
]
"""Options whose files stdout can't hold."""


def test_every_option_that_names_an_output_is_parsed_as_one() -> None:
    assert len(OUTPUTS) >= 7
    known = {(option.command, option.name) for option in OUTPUTS}
    read = {(words, names_of(option)[0]) for words, option, _ in every_option() if option.parser is input_path}
    assert read == {
        (("explain",), "--with"),
        (("observe",), "--log"),
        (("calibrate", "fabric"), "--import"),
        (("validate",), "--models"),
    }, "they are read"
    suspects = {
        (words, names_of(option)[0] if names_of(option) else "an option without a name")
        for words, option, kind in every_option()
        if option.metavar in FILE_METAVARS or Path in (kind, *get_args(kind)) or "-o" in names_of(option)
    }
    assert suspects <= known | read, "give these options one of the parsers of outputs in meshwright.app.cli.options"


@pytest.fixture
def words(cli: Cli) -> Callable[[Option, Path], list[str]]:
    """The words of a command that works, with its output at a path."""
    request = cli.write("request.json", training(search=FEW_LAYOUTS))
    plans = cli.folder / "plans"
    plans.mkdir()
    (plans / "a.plan.yaml").write_text(json.dumps(training(search=FEW_LAYOUTS)))
    write_samples(cli.folder / "toy.csv", toy_samples())
    measurements = str(cli.folder / "toy.csv")
    plan = str(cli.folder / "given.json")
    served, serving_plan = cli.write("served.json", SERVED), str(cli.folder / "served-plan.json")

    arguments: dict[tuple[str, ...], list[str]] = {
        ("plan",): [request, "--no-store"],
        ("init",): ["qwen3-8b", "--gpus", "8xH100", "--batch", "8", "--seq", "128"],
        ("export",): [plan, "--to", "megatron-lm"],
        ("simulate",): [served, "--plan", serving_plan],
        ("check",): [str(plans)],
        ("calibrate", "fabric"): [],
        ("calibrate", "profile"): ["my-node", "--kind", "norm", "--repeat-ms", "0.1"],
        ("calibrate", "import"): [measurements],
        ("validate",): [str(write_table(cli.folder / "measured.csv", {}))],
    }

    def build(option: Option, path: Path) -> list[str]:
        assert option.command in arguments, f"say here how {option.id} is called"
        if option.command == ("export",) and not Path(plan).exists():
            assert cli("plan", request, "--no-store", "-o", plan) == 0
        if option.command == ("simulate",) and not Path(serving_plan).exists():
            assert cli("plan", served, "--no-store", "-o", serving_plan) == 0
        if option.command == ("check",):
            assert cli("check", str(plans), "--update") == 0
        return [*option.command, *arguments[option.command], option.name, str(path)]

    return build


Words = Callable[[Option, Path], list[str]]


def require_tools(option: Option) -> None:
    """Skip where a command can't come to its end with what is installed."""
    if option.command == ("calibrate", "profile"):
        pytest.importorskip("torch")


def a_directory(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def a_link(path: Path) -> None:
    (path.parent / "precious").write_text(OLD)
    path.symlink_to(path.parent / "precious")


def a_broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def a_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("a device can't be made here")


REFUSED: dict[str, Callable[[Path], None]] = {
    "a directory": a_directory,
    "a FIFO": os.mkfifo,
    "a socket": a_socket,
    "a symbolic link": a_link,
    "a symbolic link to nothing": a_broken_link,
    "a device": a_device,
}


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("option", FILES, ids=lambda option: option.id)
def test_what_is_no_regular_file_is_refused_and_stays(
    option: Option, kind: str, cli: Cli, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not the test's folder itself: a socket's path may have 107 bytes.
    monkeypatch.chdir(cli.folder)
    target = Path("target")
    REFUSED[kind](target)
    before = target.lstat()
    assert cli(*words(option, target)) == 2
    assert "target" in cli.err and "allowed: a regular file" in cli.err and "what to do:" in cli.err
    assert kind.removesuffix(" to nothing") in cli.err
    after = target.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    if kind == "a symbolic link":
        assert Path("precious").read_text() == OLD
    assert not Path("nothing").exists()


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device", "a symbolic link to nothing"])
@pytest.mark.parametrize("option", [each for each in OUTPUTS if each.is_folder], ids=lambda option: option.id)
def test_a_folder_to_write_into_is_a_folder(
    option: Option, kind: str, cli: Cli, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.folder)
    REFUSED[kind](Path("target"))
    assert cli(*words(option, Path("target"))) == 2
    assert "target" in cli.err
    assert not Path("target").is_dir()


@pytest.mark.parametrize("name", ["launch.sh"])
def test_files_in_an_export_folder_are_refused_likewise(name: str, cli: Cli, words: Words) -> None:
    (option,) = (each for each in OUTPUTS if each.command == ("export",))
    folder = cli.folder / "launch"
    folder.mkdir()
    (folder / name).symlink_to(cli.folder / "request.json")
    before = (cli.folder / "request.json").read_text()
    assert cli(*words(option, folder)) == 2
    assert "a symbolic link" in cli.err
    assert (cli.folder / "request.json").read_text() == before
    assert os.listdir(folder) == [name]


def test_a_lock_behind_a_link_is_refused(cli: Cli) -> None:
    plans = cli.folder / "plans"
    plans.mkdir()
    (plans / "a.plan.yaml").write_text(json.dumps(training()))
    (plans / LOCK_NAME).symlink_to(cli.folder / "elsewhere.json")
    assert cli("check", str(plans), "--update") == 2
    assert "a symbolic link" in cli.err
    assert not (cli.folder / "elsewhere.json").exists()


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("option", OUTPUTS, ids=lambda option: option.id)
def test_outputs_are_written_and_leave_nothing_else(option: Option, cli: Cli, words: Words) -> None:
    require_tools(option)
    target = cli.folder / "made" / "output"
    target.parent.mkdir()
    assert cli(*words(option, target)) in (0, 1)
    assert target.exists()
    assert os.listdir(target.parent) == ["output"]


def test_many_files_do_not_go_to_stdout(cli: Cli, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.folder)
    for option in OF_MANY:
        assert cli(*words(option, Path("-"))) == 2
        assert "a folder" in cli.err
        assert not Path("-").exists()


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("option", [each for each in OUTPUTS if each not in OF_MANY], ids=lambda option: option.id)
def test_a_dash_is_stdout_and_holds_nothing_else(
    option: Option, cli: Cli, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tools(option)
    monkeypatch.chdir(cli.folder)
    assert cli(*words(option, Path("-"))) in (0, 1)
    assert not Path("-").exists()
    starts = {
        "--junit": "<?xml",
        "--sarif": "{",
        "--summary": "#",
        "--trace": "{",
        "--html": "<!DOCTYPE html>",
        "--svg-timeline": "<svg",
        "--svg-memory": "<svg",
        "--svg-frontier": "<svg",
        "--svg-map": "<svg",
        "plan --csv": "stage,",
        "simulate --csv": "end_s,",
        "plan --output": "{",
        "init --output": "schema: ",
        "export --output": "#!/bin/sh",
        "calibrate fabric --output": '"""',
        "calibrate profile --output": "device,",
        "calibrate import --output": "device,",
    }
    start = starts.get(option.name) or starts[option.id]
    assert cli.out.startswith(start)
    if start == "{":
        cli.json()
    if option.command == ("plan",):
        assert "Feasible" in cli.err


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("option", [each for each in OUTPUTS if each not in OF_MANY], ids=lambda option: option.id)
def test_a_dash_beside_json_leaves_one_document_on_stdout(option: Option, cli: Cli, words: Words) -> None:
    given = {name for command, each, _ in every_option() if command == option.command for name in names_of(each)}
    if "--json" not in given:
        pytest.skip("the command has no --json")
    code = cli(*words(option, Path("-")), "--json")
    document = cli.json()
    assert code in (0, 1) or "stdout holds one thing" in document["detail"]


def test_two_dashes_are_refused(cli: Cli, words: Words) -> None:
    option = next(each for each in FILES if each.name == "--junit")
    assert cli(*words(option, Path("-")), "--sarif", "-") == 2
    assert "stdout holds one thing" in cli.err


def test_a_replaced_file_keeps_its_mode_and_a_new_one_has_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text(OLD)
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        write_output(old, "after", what="plan")
        write_output(new, "after", what="plan")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o640, 0o640]
    assert old.read_text() == new.read_text() == "after"


def test_a_summary_is_added_to(cli: Cli, words: Words) -> None:
    option = next(each for each in FILES if each.name == "--summary")
    target = cli.folder / "summary.md"
    target.write_text(OLD)
    cli(*words(option, target))
    assert target.read_text().startswith(OLD) and len(target.read_text()) > len(OLD)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages, with an old file on it."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            return


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("option", FILES, ids=lambda option: option.id)
def test_a_full_disk_leaves_the_old_file_whole(option: Option, cli: Cli, words: Words, small_disk: Path) -> None:
    require_tools(option)
    target = small_disk / "output"
    target.write_text(OLD)
    fill(small_disk)
    assert cli(*words(option, target)) == 2
    assert "No space left on device" in cli.err
    assert target.read_text() == OLD
    assert sorted(os.listdir(small_disk)) == ["ballast", "output"]


def test_a_full_disk_changes_none_of_several_files(small_disk: Path) -> None:
    files = [OutputFile(small_disk / name, b"x" * (SMALL_DISK_BYTES // 2)) for name in "abc"]
    with pytest.raises(PlanFileError, match="No space left"):
        write_outputs(files, what="export")
    assert os.listdir(small_disk) == []


@pytest.mark.slow
def test_a_kill_amid_the_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """The kernel ends the command in the middle of its write: SIGXFSZ comes with the first byte over a limit."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("the file system has no files without a name")
    request, target = tmp_path / "request.json", tmp_path / "made" / "plan.json"
    request.write_text(json.dumps(training()))
    target.parent.mkdir()
    target.write_text(OLD)
    code = (
        "import resource, signal\n"
        "from meshwright.app.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))\n"
        "main()\n"
    )
    command = [sys.executable, "-B", "-c", code, "plan", str(request), "--no-store", "-o", str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    resource_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ended = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == resource_limit
    assert ended.returncode == -signal.SIGXFSZ, ended.stderr.decode()
    assert target.read_text() == OLD
    assert os.listdir(target.parent) == ["plan.json"]
