"""Writing and reading whole artifacts."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aifb import layout
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.header import DATA_ALIGNMENT
from aifb.reader import open_artifact
from aifb.tensors import TensorData
from aifb.writer import write_artifact
from tests.aifb import samples

# The format's golden value: when it changes, artifacts out there can't be made again, which takes a new version.
GOLDEN = (
    "2a3fee6cba5d3e96f55de9edf481455397c450309b472e1c0942093b2d1da66e"
    "f36047eefcd79ac0d8b5f7a29bb4fb6c1adbc7a1c019d7cde2da0dcd7b873fc7"
)


def test_everything_comes_back(tmp_path: Path) -> None:
    written = samples.write(tmp_path / "a.aifb")
    with open_artifact(written.path, expected_root=bytes.fromhex(written.digest)) as artifact:
        assert artifact.digest == written.digest
        assert artifact.tensor_names == tuple(sorted(samples.tensors()))
        for name, tensor in samples.tensors().items():
            expected = samples.tensors()[tensor.alias_of] if tensor.alias_of else tensor
            assert artifact.dtype_name(name) == expected.dtype
            assert bytes(artifact.tensor_bytes(name)) == bytes(expected.buffer)
        assert artifact.asset("labels.json") == samples.ASSETS["labels.json"][1]
        assert artifact.metadata.graph == samples.graph()
        assert artifact.entry_point() == samples.entry_point()
        assert artifact.quantisation("small") == samples.quantisation()["small"]
        assert artifact.quantisation("weight") is None
        assert dict(artifact.metadata.notes) == {"producer": "tests"}
        assert {n: (t.dtype, t.shape, t.alias_of, bytes(t.buffer)) for n, t in artifact.tensors().items()} == {
            n: (t.dtype, t.shape, t.alias_of, bytes(t.buffer)) for n, t in samples.tensors().items()
        }


def test_arrays_are_read_only_views_that_outlive_the_artifact(tmp_path: Path) -> None:
    with open_artifact(samples.write(tmp_path / "a.aifb").path) as artifact:
        weight, halves, nibbles = (artifact.array(name) for name in ("weight", "halves", "nibbles"))
        assert not weight.flags.owndata
        assert artifact.array("tied").ctypes.data == weight.ctypes.data
        assert artifact.array("empty").shape == (0, 3)
        assert artifact.array("scalar") == 2.5
    assert halves.dtype == np.uint16
    assert nibbles.tolist() == [0x21, 0x03]
    assert weight.tolist() == samples.tensors()["weight"].array().tolist()
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1


def test_same_input_makes_the_same_bytes(tmp_path: Path) -> None:
    first = samples.write(tmp_path / "a.aifb")
    backwards = dict(reversed(samples.tensors().items()))
    second = write_artifact(
        tmp_path / "b.aifb",
        tensors=backwards,
        graph=samples.graph(),
        assets=samples.ASSETS,
        entry_points=[samples.entry_point()],
        quantisation=samples.quantisation(),
        notes={"producer": "tests"},
    )
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.digest == second.digest == GOLDEN


def test_reported_digests_are_those_of_the_file(tmp_path: Path) -> None:
    written = samples.write(tmp_path / "a.aifb")
    content = written.path.read_bytes()
    assert written.total_bytes == len(content)
    assert written.digest == content[56:120].hex()
    assert written.flat_sha3_512 == hashlib.sha3_512(content).hexdigest()
    assert content == samples.assemble(samples.metadata().SerializeToString(deterministic=True), samples.data())


def test_written_under_its_name_or_not_at_all(tmp_path: Path) -> None:
    bad = samples.graph()
    bad.nodes[0].op = "aten.from_file.default"
    with pytest.raises(AifbError) as refusal:
        write_artifact(tmp_path / "a.aifb", tensors=samples.tensors(), graph=bad, assets={}, entry_points=[])
    assert refusal.value.code == "unknown_op"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        samples.write(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_open_descriptor_is_what_is_verified_and_mapped(tmp_path: Path) -> None:
    path = samples.write(tmp_path / "a.aifb").path
    fd = os.open(path, os.O_RDONLY)
    try:
        path.unlink()
        path.write_bytes(b"something else under the same name")
        with open_artifact(fd) as artifact:
            assert artifact.array("bias").tolist() == [0, 1, 2, 3, 4]
        assert os.fstat(fd).st_size == artifact.header.total_bytes  # still open: it is the caller's
    finally:
        os.close(fd)


def test_expected_root_and_damage_are_told_apart(tmp_path: Path) -> None:
    path = samples.write(tmp_path / "a.aifb").path
    for verify in (True, False):
        with pytest.raises(AifbError, match="another artifact"):
            open_artifact(path, expected_root=bytes(64), verify=verify)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(AifbError, match="damaged"):
        open_artifact(path)
    open_artifact(path, verify=False).close()  # the caller says that it has verified this very file


def test_missing_names_have_a_code(tmp_path: Path) -> None:
    with open_artifact(samples.write(tmp_path / "a.aifb").path) as artifact:
        for ask in (artifact.tensor, artifact.array, artifact.tensor_bytes, artifact.asset, artifact.entry_point):
            with pytest.raises(AifbError) as refusal:
                ask("nothing")
            assert refusal.value.code == "not_found"


arrays = hnp.arrays(
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint8", "bool", "int32", "int16"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
)
names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.\-]{0,20}\Z")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, arrays, max_size=8), st.dictionaries(names, st.binary(max_size=5000), max_size=3))
def test_any_tensors_and_assets_round_trip(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], assets: dict[str, bytes]
) -> None:
    path = tmp_path_factory.mktemp("round") / "a.aifb"
    assets = {name: content for name, content in assets.items() if name not in tensors}
    write_artifact(
        path,
        tensors={name: TensorData.from_numpy(array) for name, array in tensors.items()},
        graph=pb.Graph(),
        assets={name: ("application/octet-stream", content) for name, content in assets.items()},
        entry_points=[],
    )
    with open_artifact(path) as artifact:
        for name, array in tensors.items():
            back = artifact.array(name)
            assert back.dtype == array.dtype
            assert back.shape == array.shape
            assert back.tobytes() == array.tobytes()
            aligned_to = min(array.nbytes & -array.nbytes, DATA_ALIGNMENT) if array.nbytes else 1
            assert (artifact.header.data_offset + artifact.tensor(name).offset) % aligned_to == 0
        assert {name: artifact.asset(name) for name in artifact.asset_names} == assets


@given(st.dictionaries(names, st.integers(0, 1 << 40), max_size=30))
def test_layout_has_no_holes_and_passes_its_own_check(lengths: dict[str, int]) -> None:
    spans = layout.place(lengths.items())
    layout.check(spans, sum(lengths.values()))
    assert {span.name: span.length for span in spans} == lengths


def test_big_endian_and_strided_arrays_are_stored_little_endian_and_dense() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    data = TensorData.from_numpy(array)
    assert data.dtype == "float32"
    assert bytes(data.buffer) == array.astype("<f4").tobytes()


def test_reader_signing_and_trust_work_without_torch() -> None:
    code = """
import pkgutil, sys, importlib, aifb
for module in pkgutil.iter_modules(aifb.__path__):
    if module.name != "importers":
        importlib.import_module("aifb." + module.name)
loaded = {"torch", "django", "sklearn"} & set(sys.modules)
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
