"""Files that a user names for a command to write: regular files, whole or not at all, or stdout as ``-``.

A new file is written beside its place, without a name where the file system can do that, and takes the place when every byte
is on the disk. So a full disk or a kill leaves the old file whole and nothing of ours beside it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from meshwright.costmodels.errors import InvalidInputError, PlanFileError

STDOUT = Path("-")
"""The name that means standard output."""
ALLOWED = "a regular file, a name where nothing is yet, or - for stdout"

_KINDS = (
    (stat.S_ISLNK, "a symbolic link", "name the file that it points to; what stands behind a link may be another's"),
    (stat.S_ISDIR, "a directory", "name a file in it"),
    (stat.S_ISFIFO, "a FIFO", "write to stdout with - and redirect that"),
    (stat.S_ISSOCK, "a socket", "write to stdout with - and pipe that"),
    (stat.S_ISCHR, "a device", "write to stdout with - and redirect that"),
    (stat.S_ISBLK, "a block device", "write to a file"),
)
"""The kinds of files that are never written to: the test of the mode, the name, and what to do instead."""


class FilePermissions(Enum):
    """The permissions of a new file, before the umask takes some away."""

    DOCUMENT = 0o666
    SCRIPT = 0o777


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to write: its path (`STDOUT` for standard output), its content, and the permissions of a new one."""

    path: Path
    content: str | bytes
    mode: FilePermissions = FilePermissions.DOCUMENT

    @property
    def data(self) -> bytes:
        """The content as bytes."""
        return self.content.encode() if isinstance(self.content, str) else self.content


def is_stdout(path: Path | None) -> bool:
    """Return True for the name of standard output."""
    return path == STDOUT


def check_output(path: Path, *, what: str) -> None:
    """Refuse a path that can't be written; raises PlanFileError. Commands ask before they work for an hour."""
    if is_stdout(path):
        return
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        _check_folder(path, what)
        return
    except (OSError, ValueError) as error:
        raise _unwritable(path, what, error) from None
    for is_kind, kind, remedy in _KINDS:
        if is_kind(found):
            raise PlanFileError(f"the {what} can't be written: this is {kind}", given=str(path), allowed=ALLOWED, remedy=remedy)
    if not os.access(path, os.W_OK):
        raise PlanFileError(
            f"the {what} can't be written: the file there is read-only",
            given=str(path),
            allowed=ALLOWED,
            remedy="name another file, or make this one writable",
        )


def write_output(path: Path, content: str | bytes, *, what: str) -> None:
    """Write one file as ``write_outputs`` does."""
    write_outputs([OutputFile(path, content)], what=what)


def write_outputs(files: Sequence[OutputFile], *, what: str) -> None:
    """Write files: all of them beside their places first, and only then each to its place, so that a full disk changes none.

    A file that is replaced keeps its permissions. Raises PlanFileError when it can't be done.
    """
    for file in files:
        check_output(file.path, what=what)
    with contextlib.ExitStack() as staged:
        ready = []
        for file in files:
            if is_stdout(file.path):
                _print(file.data)
                continue
            try:
                ready.append((file.path, staged.enter_context(_staged(file))))
            except OSError as error:
                raise _unwritable(file.path, what, error) from None
        for path, temporary in ready:
            try:
                temporary.move_to(path)
            except OSError as error:
                raise _unwritable(path, what, error) from None


def append_output(path: Path, text: str, *, what: str) -> None:
    """Add text to the end of a file, or write it where none is; the old text is lost in no case. Raises PlanFileError."""
    check_output(path, what=what)
    before = b""
    if not is_stdout(path):
        try:
            before = path.read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unwritable(path, what, error) from None
    write_output(path, before + text.encode(), what=what)


def check_one_stdout(*, taken: bool, outputs: Sequence[Path | None]) -> None:
    """Refuse more than one thing on stdout: two outputs named ``-``, or one where stdout is ``taken`` by the answer."""
    named = sum(is_stdout(path) for path in outputs)
    if named > 1 or (named and taken):
        given = "- beside --json or --github" if taken else "- more than once"
        raise InvalidInputError("stdout holds one thing", given=given, allowed="one of them", remedy="name a file instead of -")


@dataclass(frozen=True, slots=True)
class _Temporary:
    """A written file beside the place that it will take; ``name`` is None while it has none."""

    folder: int
    file: BinaryIO
    name: str | None

    def move_to(self, path: Path) -> None:
        """Put the file in its place and have the folder remember it."""
        name = self.name
        if name is None:
            name = _free_name()
            # Both given as of a folder: only then does Python follow the link in /proc to the file without a name.
            os.link(
                f"/proc/self/fd/{self.file.fileno()}",
                name,
                src_dir_fd=self.folder,
                dst_dir_fd=self.folder,
                follow_symlinks=True,
            )
        try:
            os.replace(name, path.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except OSError:
            os.unlink(name, dir_fd=self.folder)
            raise
        os.fsync(self.folder)


@contextlib.contextmanager
def _staged(file: OutputFile) -> Iterator[_Temporary]:
    """The file's bytes on the disk of its folder, not yet in its place; gone at the end if they never got there."""
    folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor, name = _open_beside(file.path, folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(file.data)
                stream.flush()
                os.fchmod(descriptor, _permissions(file))
                os.fsync(descriptor)
                yield _Temporary(folder, stream, name)
        finally:
            if name is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _open_beside(path: Path, folder: int) -> tuple[int, str | None]:
    """A new file in the folder, and its name: None for a file without one, which a killed process leaves nowhere."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600), None
    except (OSError, AttributeError):
        # Not Linux, or a file system that has no such files.
        name = _free_name()
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder), name


def _free_name() -> str:
    """A name that nobody has: 64 random bits, and short, whatever the length of the name that the file will have."""
    return f".meshwright-{secrets.token_hex(8)}"


def _permissions(file: OutputFile) -> int:
    """Those of the file that is replaced, of a script with the right to run it; else those of a new file."""
    of_new = file.mode.value & ~_umask()
    try:
        of_old = file.path.lstat().st_mode & 0o777
    except FileNotFoundError:
        return of_new
    return of_old | (of_new & 0o111)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _print(data: bytes) -> None:
    """Bytes on stdout, behind what was printed before."""
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(data.decode())
    else:
        stream.write(data)
        stream.flush()


def _check_folder(path: Path, what: str) -> None:
    if not path.parent.is_dir():
        raise PlanFileError(
            f"the {what} can't be written: there is no such directory", given=str(path), remedy="make the directory first"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PlanFileError(f"the {what} can't be written: Permission denied", given=str(path), allowed=ALLOWED)


def _unwritable(path: Path, what: str, error: OSError | ValueError) -> PlanFileError:
    problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return PlanFileError(
        f"the {what} can't be written: {problem}; what was there before is whole",
        given=str(path),
        allowed=ALLOWED,
        remedy="make room, or name another file",
    )
