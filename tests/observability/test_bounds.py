"""A batch is judged by the number of its rows before it is parsed: rows cost memory that their bytes don't show."""

from __future__ import annotations

import resource

import pytest

from protocol.messages import TELEMETRY_MAX_BYTES, TELEMETRY_MAX_ROWS
from tests.observability.batches import batch, comparison, inference, send

HEAD_BYTES = 200


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


@pytest.mark.parametrize("row", [b"\x2a\x00", b"\x32\x00"], ids=["inference", "comparison"])
def test_millions_of_empty_rows_are_refused_unparsed(agent, row):
    bomb = batch(agent, 1).SerializeToString() + row * ((TELEMETRY_MAX_BYTES - HEAD_BYTES) // 2)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = send(agent, bomb)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_rows")
    assert grown_mib < 64
    assert send(agent, batch(agent, 1, inference())).status_code == 200


def test_fields_that_nobody_knows_are_bounded_too(agent):
    bomb = batch(agent, 1).SerializeToString() + b"\x78\x00" * 1_000_000  # field 15, a varint
    assert send(agent, bomb).json()["code"] == "too_many_rows"


def test_a_full_batch_is_taken(agent):
    rows = [inference() for _ in range(TELEMETRY_MAX_ROWS - 1)]
    assert send(agent, batch(agent, 1, *rows, comparison())).status_code == 200


@pytest.mark.parametrize(
    "raw", [b"\x2a", b"\x2a\xff\xff\xff\xff\x7f", b"\x2a" + b"\xff" * 11, b"\x2b\x2c", b"\x09\x00"],
    ids=["no length", "beyond the end", "endless number", "group", "short number"],
)  # fmt: skip
def test_what_is_no_batch_says_so(agent, raw):
    answer = send(agent, raw)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_batch")
