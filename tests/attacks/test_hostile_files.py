"""Every hostile file gets its code, and nothing that is not an AifbError ever comes out of the reader."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aifb.errors import CODES, AifbError
from aifb.header import HEADER_BYTES, Header
from aifb.reader import open_artifact
from tests.aifb import samples
from tests.attacks import hostile_files


@pytest.mark.parametrize("name", hostile_files.CASES)
def test_hostile_file_gets_its_code(name: str, tmp_path: Path) -> None:
    content, code = hostile_files.CASES[name]
    assert code in CODES
    path = tmp_path / "hostile.aifb"
    path.write_bytes(content)
    with pytest.raises(AifbError) as refusal:
        open_artifact(path)
    assert refusal.value.code == code, refusal.value.sentence


def test_the_sample_itself_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "good.aifb"
    path.write_bytes(hostile_files.sample())
    open_artifact(path).close()


def test_every_bit_flip_of_the_header_is_refused() -> None:
    good = hostile_files.sample()[:HEADER_BYTES]
    for bit in range(HEADER_BYTES * 8):
        at = bit // 8
        changed = bytearray(good)
        changed[at] ^= 1 << bit % 8
        code = "bad_magic" if at < 6 else "bad_version" if at < 8 else "bad_crc" if at < 124 else "bad_reserved"
        with pytest.raises(AifbError) as refusal:
            Header.parse(bytes(changed))
        assert refusal.value.code == code, bit


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_change_of_a_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(hostile_files.sample())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "changed.aifb"
    path.write_bytes(content)
    with pytest.raises(AifbError):
        open_artifact(path)


mutations = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete", "copy"]), st.integers(0, 4000), st.binary(max_size=12)),
    min_size=1,
    max_size=6,
)


def mutate(raw: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """Apply changes as a fuzzer would."""
    for kind, at, new in changes:
        at %= len(raw) + 1
        after = at if kind == "insert" else at + len(new)
        middle = b"" if kind == "delete" else raw[: len(new)] if kind == "copy" else new
        raw = raw[:at] + middle + raw[after:]
    return raw


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations)
def test_mutated_metadata_is_refused_or_stays_in_bounds(tmp_path: Path, changes: list[tuple[str, int, bytes]]) -> None:
    raw = mutate(samples.metadata().SerializeToString(deterministic=True), changes)
    path = tmp_path / "mutated.aifb"
    path.write_bytes(samples.assemble(raw, samples.data()))
    try:
        artifact = open_artifact(path)
    except AifbError:
        return  # refused, and with a code; any other exception fails this test
    with artifact:
        stored = [artifact.tensor_bytes(name).nbytes for name, t in artifact.tensors().items() if not t.alias_of]
        stored += [len(artifact.asset(name)) for name in artifact.asset_names]
        assert sum(stored) == len(samples.data())
