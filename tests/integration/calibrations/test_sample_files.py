"""Files of measurements say what they hold, in either form, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.evidence.measuring.sample_files import read_samples, samples_digest, write_samples
from meshwright.costmodels.fitting.samples import COLUMNS, SampleError
from tests.unit.costmodels.measurements import toy_samples


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_measurements_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    given = toy_samples()
    write_samples(tmp_path / name, given)
    read = read_samples(tmp_path / name)
    assert list(read.rows()) == list(given.rows())
    assert samples_digest(read) == samples_digest(given)


def test_the_digest_is_of_the_rows() -> None:
    samples = toy_samples()
    assert samples_digest(samples) != samples_digest(samples.where(samples.kind != "norm"))


HEAD = "device,kind,dtype,moved_bytes,time_s\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing"),
        (HEAD, "no measurements"),
        ("device,kind,dtype,time_s,colour\n", "colour"),
        (HEAD + "a,stream,fp32,64,1e-6\na,stream,fp32,64,fast\n", "line 3: time_s is no number"),
        (HEAD + "a,stream,fp32,64\n", "line 2"),
        (HEAD + "a,stream,fp32,,1e-6\n", "moved_bytes"),
        (HEAD + "a,stream,fp32,64,inf\n", "time_s"),
        (HEAD + "=HYPERLINK(1),stream,fp32,64,1e-6\n", "line 2: device is a formula"),
        (HEAD + "@a,stream,fp32,64,1e-6\n", "line 2: device is a formula"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(SampleError, match=said) as raised:
        read_samples(path)
    assert str(path) in str(raised.value)


def test_files_that_are_not_what_they_seem(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name in ("a.parquet", "a.csv.gz"):
        (tmp_path / name).write_bytes(b"\xffnothing of the kind")
        with pytest.raises(SampleError, match="can't be read"):
            read_samples(tmp_path / name)
    with pytest.raises(SampleError, match="can't be read"):
        read_samples(tmp_path / "absent.csv")


def test_every_column_is_written(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.csv", toy_samples())
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
