"""The spool: nothing appended is lost, a torn tail is left, garbage is refused."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.spool import SpoolError, SpoolWriter, encode_varint, read_messages, recover_orphans
from protocol.telemetry_pb2 import InferenceRow
from tests.engine.support import ROOT


def _row(number: int, fill: int = 0) -> InferenceRow:
    return InferenceRow(request_id=f"r{number}", predicted_label="x" * fill)


def _ids(path: Path) -> list[str]:
    return [row.request_id for row in read_messages(path, InferenceRow)]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**21, 2**28 - 1])
def test_varints_are_protobufs(value: int) -> None:
    raw = encode_varint(value)
    # field 1, varint: the same encoding
    assert InferenceRow.FromString(b"\x20" + raw).version == value  # field 4 is version
    assert len(raw) == max(1, -(-value.bit_length() // 7))


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "inf")
    assert all(writer.append(_row(number, fill=number * 50)) for number in range(20))
    (path,) = tmp_path.glob("inf-*.open")
    assert _ids(path) == [f"r{number}" for number in range(20)], "readable while it is being written"
    writer.close()
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".log"
    assert _ids(path) == [f"r{number}" for number in range(20)]
    assert (writer.written, writer.lost) == (20, 0)


def test_a_file_is_published_when_it_is_large_enough(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "inf", rotate_after_bytes=1000)
    for number in range(25):
        writer.append(_row(number, fill=90))
    published = sorted(tmp_path.glob("*.log"))
    assert len(published) == 2
    assert all(path.stat().st_size >= 1000 for path in published)
    writer.close()
    names = sorted(tmp_path.glob("*.log"))
    assert [identity for path in names for identity in _ids(path)] == [f"r{number}" for number in range(25)]


def test_a_file_is_published_when_it_is_old_enough_even_if_nothing_more_comes(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "inf", rotate_after_s=0.05)
    writer.append(_row(1))
    time.sleep(0.06)
    assert list(tmp_path.glob("*.log")) == []
    writer.rotate_if_due()
    assert len(list(tmp_path.glob("*.log"))) == 1
    writer.rotate_if_due()
    writer.close()
    assert len(list(tmp_path.iterdir())) == 1, "nothing to publish, no file"


def test_any_torn_tail_leaves_the_complete_rows(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "inf")
    writer.append(_row(1))
    (path,) = tmp_path.iterdir()
    first = path.stat().st_size
    writer.append(_row(2, fill=200))
    raw = path.read_bytes()
    torn = tmp_path / "torn"
    for cut in range(len(raw)):
        torn.write_bytes(raw[:cut])
        assert _ids(torn) == (["r1"] if cut >= first else [])


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff\xff\xff",  # a length beyond 32 bits
        encode_varint((1 << 20) + 1) + b"x",  # a message beyond the limit
        encode_varint(3) + b"\xff\xff\xff",  # no message
    ],
)
def test_what_no_writer_wrote_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(raw)
    with pytest.raises(SpoolError) as caught:
        list(read_messages(path, InferenceRow))
    assert caught.value.code == "spool_corrupt"


def test_a_full_disk_loses_rows_but_never_spoils_the_file(tmp_path: Path) -> None:
    """The limit of file size stands in for the disk: a write is cut short, then refused."""
    writer = SpoolWriter(tmp_path, "inf")
    writer.append(_row(1))
    (path,) = tmp_path.iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        assert writer.append(_row(2, fill=100)) is False
        assert writer.append(_row(3, fill=100)) is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert writer.append(_row(4)) is True
    assert (writer.written, writer.lost) == (2, 2)
    assert _ids(path) == ["r1", "r4"]


def test_a_folder_that_is_gone_loses_rows_and_nothing_else(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "gone", "inf")
    assert writer.append(_row(1)) is False
    (tmp_path / "gone").mkdir()
    assert writer.append(_row(2)) is True
    assert (writer.written, writer.lost) == (1, 1)


WRITER = """
import os, signal, sys
from protocol.spool import SpoolWriter
from protocol.telemetry_pb2 import InferenceRow
writer = SpoolWriter(sys.argv[1], "inf")
for number in range(3):
    writer.append(InferenceRow(request_id=f"r{number}"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_the_dead_are_published_and_those_of_the_living_are_left(tmp_path: Path) -> None:
    mine = SpoolWriter(tmp_path, "inf")
    mine.append(_row(9))
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    (published,) = recover_orphans(tmp_path)
    assert _ids(published) == ["r0", "r1", "r2"]
    assert len(list(tmp_path.glob(f"inf-*-{os.getpid()}-1.open"))) == 1
    assert recover_orphans(tmp_path) == []


def test_a_file_older_than_the_process_that_has_its_writers_pid_now_is_published(tmp_path: Path) -> None:
    path = tmp_path / f"inf-0000000000001-{os.getpid()}-1.open"
    path.write_bytes(b"")
    os.utime(path, (1, 1))
    assert recover_orphans(tmp_path) == [path.with_suffix(".log")]
