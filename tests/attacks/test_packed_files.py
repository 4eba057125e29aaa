"""Small files that unpack to gigabytes: refused after some megabytes, whichever command reads them."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from meshwright.app.base.documents import ANY_RATIO_BYTES, read_bounded
from meshwright.costmodels.errors import InvalidInputError
from tests.attacks.served import COMMAND

GIB = 2**30
SPACES = b" " * 2**20
DENSE, LONG = "packed more densely than any document", "the request is too large"
COMMANDS = {
    "problem.json.gz": (("shard", "problem.json.gz"), DENSE),
    "request.yaml.gz": (("plan", "request.yaml.gz"), LONG),
    "measured.csv.gz": (("calibrate", "import", "measured.csv.gz", "-o", "copy.csv"), DENSE),
}


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Four gigabytes of spaces, packed once and repeated; what is wrong with the end nobody is to see."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(SPACES) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(SPACES) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (4 * GIB // len(SPACES))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(tmp_path: Path, bomb: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(bomb)
    arguments, said = COMMANDS[name]
    # With all of Python and its libraries; whatever unpacks the file ends here.
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({GIB // 2}, {GIB // 2})); "
    command = [sys.executable, "-c", limit + COMMAND[-1], *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())


def test_a_bomb_is_refused_after_some_megabytes_of_it(bomb: bytes) -> None:
    with pytest.raises(InvalidInputError, match="packed more densely") as refused:
        read_bounded(io.BytesIO(bomb), limit=8 * GIB, what="file")
    given = re.findall(r"\d+", str(refused.value.given))
    assert int(given[1]) < 3 * ANY_RATIO_BYTES


@pytest.mark.parametrize("length", [0, 1, ANY_RATIO_BYTES, ANY_RATIO_BYTES + 1])
def test_what_people_pack_is_read_whole(length: int) -> None:
    content = (b"123456789," * (length // 10 + 1))[:length]
    if length > ANY_RATIO_BYTES:
        with pytest.raises(InvalidInputError, match="packed more densely"):
            read_bounded(io.BytesIO(gzip.compress(content)), limit=GIB, what="file")
        return
    assert read_bounded(io.BytesIO(gzip.compress(content)), limit=GIB, what="file") == content
