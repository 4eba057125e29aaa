"""Writing what commands make: whole files or nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from costmodels.errors import PlanFileError


def write_whole(path: Path, text: str, *, what: str) -> None:
    """Write a file so that a reader never sees half of it; raises PlanFileError when that can't be done."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            file.write(text)
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, path)
    except OSError as error:
        raise PlanFileError(f"the {what} can't be written: {error.strerror}", given=str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
