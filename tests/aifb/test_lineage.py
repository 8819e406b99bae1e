"""The four hashes move when what they stand for moves, and only then."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from aifb import lineage
from aifb.lineage import LineageInputs, PartChange
from aifb.reader import open_artifact
from aifb.tensors import TensorData
from tests.aifb import samples

HEX = set("0123456789abcdef")


def test_model_hash_is_the_same_before_and_after_the_file(tmp_path: Path) -> None:
    written = samples.write(tmp_path / "a.aifb")
    with open_artifact(written.path) as artifact:
        assert lineage.model_hash(artifact.tensors()) == lineage.model_hash(samples.tensors())


def test_model_hash_ignores_order_and_notices_all_else() -> None:
    tensors = samples.tensors()
    before = lineage.model_hash(tensors)
    assert lineage.model_hash(dict(reversed(tensors.items()))) == before
    bias = tensors["bias"]
    for changed in (
        {"bias": TensorData.from_numpy(np.array([0, 1, 2, 3, 5]))},
        {"bias": TensorData(bias.dtype, (5, 1), bias.buffer)},
        {"bias": TensorData("float64", bias.shape, bias.buffer)},
        {"extra": bias},
        {"tied": TensorData.alias("small", tensors["small"])},
        {"tied": tensors["weight"]},
    ):
        assert lineage.model_hash({**tensors, **changed}) != before


def test_tensor_digest_is_over_the_digests_of_16_mib_pieces() -> None:
    content = bytes(range(256)) * (1 << 16) + b"tail"  # 16 MiB and four bytes
    pieces = hashlib.sha256(content[: 16 << 20]).digest() + hashlib.sha256(b"tail").digest()
    tensor = TensorData("uint8", (len(content),), content)
    expected = f"uint8 [{len(content)}] {hashlib.sha256(pieces).hexdigest()}"
    assert lineage.model_entries({"t": tensor}) == {"t": expected}


def test_line_ends_do_not_count_and_everything_else_of_the_data_does() -> None:
    sources, schema, seeds, assets = {"f.py": b"a\nb\n"}, b"schema", {"split": 1}, {"tokenizer.json": b"{}\r\n"}
    before = lineage.data_hash(sources, schema, seeds, assets)
    assert lineage.data_hash({"f.py": b"a\r\nb\r\n"}, schema, seeds, assets) == before
    for changed in (
        ({"g.py": b"a\nb\n"}, schema, seeds, assets),
        ({"f.py": b"a\nb"}, schema, seeds, assets),
        (sources, b"schema 2", seeds, assets),
        (sources, schema, {"split": 2}, assets),
        (sources, schema, seeds, {"tokenizer.json": b"{}\n"}),  # an asset's bytes are its own
    ):
        assert lineage.data_hash(*changed) != before


def test_build_hash_covers_sources_and_nothing_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("x = 1\n")
    before = lineage.build_hash(tmp_path)
    for made in (".git", "__pycache__", "var"):
        (tmp_path / made).mkdir()
        (tmp_path / made / "junk").write_text("junk")
    (tmp_path / "pkg" / "a.pyc").write_bytes(b"junk")
    (tmp_path / "link").symlink_to("/")
    assert lineage.build_hash(tmp_path) == before
    (tmp_path / "pkg" / "a.py").write_text("x = 2\n")
    assert lineage.build_hash(tmp_path) != before
    assert lineage.build_hash("sha256:ab") != lineage.build_hash("sha256:cd")


def test_packages_that_change_numbers_are_pinned() -> None:
    packages = lineage.number_packages()
    assert {"numpy", "torch"} <= set(packages)
    assert lineage.env_hash(packages) != lineage.env_hash({**packages, "torch": "0"})


@pytest.fixture(name="inputs")
def made_inputs() -> LineageInputs:
    """Inputs of all four parts."""
    return LineageInputs({"w": "1", "b": "2"}, {"schema": "3"}, {"torch": "4"}, {"image": "5"})


def test_identity_names_the_parts_in_order(inputs: LineageInputs) -> None:
    made = inputs.lineage()
    assert made.identity == "_".join([made.model, made.data, made.env, made.build])
    assert all(len(part) == 64 and set(part) <= HEX for part in made.as_dict().values())
    same_entries = LineageInputs({"x": "1"}, {"x": "1"}, {"x": "1"}, {"x": "1"}).lineage()
    assert len(set(same_entries.as_dict().values())) == 4


def test_changes_say_which_part_and_what_in_it(inputs: LineageInputs) -> None:
    after = LineageInputs({"w": "9", "c": "2"}, {"schema": "3"}, {"torch": "5"}, {"image": "5"})
    assert lineage.changes(inputs.as_dict(), after.as_dict()) == {
        "model": PartChange(added=("c",), removed=("b",), changed=("w",)),
        "env": PartChange(added=(), removed=(), changed=("torch",)),
    }
    assert lineage.changes(inputs.as_dict(), inputs.as_dict()) == {}
