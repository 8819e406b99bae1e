"""Loading: what was verified is what is mapped, int8 comes back as floats, weights can't be patched."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aifb.errors import AifbError
from aifb.importers.pack import Packed
from node.engine.loader import Loaded, load
from node.engine.model import ServedModel
from tests.engine.support import ROOT, Artifacts

SENTENCES = [
    "You may reproduce and distribute copies of the Work, in source or object form.",
    "The cat slept on the warm stone wall until the rain came.",
    "Interest rates were left unchanged for the third month in a row.",
    "A triangle has three sides and three angles.",
    "She opened the letter, read it twice, and put it back into the drawer.",
    "Each contributor grants a perpetual, worldwide, royalty-free licence.",
    "The train to the coast leaves at seven from the second platform.",
    "Add two cups of flour and knead the dough until it is smooth.",
]


def _load(packed: Packed) -> Loaded:
    with open(packed.written.path, "rb") as file:
        return load(file.fileno(), digest=packed.written.digest, seal=False)


def _embed(loaded: Loaded) -> np.ndarray:
    model = ServedModel(loaded)
    prepared = model.prepare({"text": SENTENCES})
    return np.concatenate([np.asarray(model.infer([row]).outputs.values["embedding"]) for row in prepared.rows])


@pytest.fixture(scope="module")
def embeddings(artifacts: Artifacts) -> dict[str, np.ndarray]:
    """(8, 384) for each version; rows have length 1, so that a dot product is a cosine."""
    return {name: _embed(_load(packed)) for name, packed in artifacts.minilm.items()}


def test_int8_with_a_scale_per_row_is_as_good_as_float32(embeddings: dict[str, np.ndarray]) -> None:
    cosines = (embeddings["v1"] * embeddings["v2"]).sum(axis=1)
    assert cosines.min() > 0.995
    assert cosines.mean() > 0.999


def test_int8_with_one_scale_per_tensor_is_measurably_worse(embeddings: dict[str, np.ndarray]) -> None:
    cosines = (embeddings["v1"] * embeddings["v3"]).sum(axis=1)
    assert cosines.mean() < 0.98


def test_dequantised_weights_are_integer_times_scale(artifacts: Artifacts) -> None:
    from aifb.importers.quantise import dequantise

    loaded = _load(artifacts.minilm["v2"])
    artifact = loaded.artifact
    quantised = [name for name in loaded.tensors if artifact.quantisation(name) is not None]
    assert len(quantised) > 30
    for name in quantised[:5]:
        quantisation = artifact.quantisation(name)
        assert quantisation is not None
        wanted = dequantise(artifact.tensor_data(name), artifact.tensor_data(quantisation.scale_tensor), quantisation)
        assert torch.equal(loaded.tensors[name], torch.from_numpy(wanted))


def test_digits_equal_plain_torch(artifacts: Artifacts) -> None:
    random = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 17, (9, 64), generator=random).float()
    ours = _load(artifacts.digits).plan.run({"pixels": pixels})["logits"]
    with torch.inference_mode():
        assert torch.allclose(ours, artifacts.classifier(pixels)["logits"], atol=1e-4)


def test_a_flipped_bit_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    written = artifacts.digits.written
    raw = bytearray(Path(written.path).read_bytes())
    raw[-1] ^= 1
    damaged = tmp_path / "damaged.aifb"
    damaged.write_bytes(raw)
    with damaged.open("rb") as file, pytest.raises(AifbError) as caught:
        load(file.fileno(), digest=written.digest, seal=False)
    assert caught.value.code == "root_mismatch"


def test_another_artifact_than_the_one_assigned_is_refused(artifacts: Artifacts) -> None:
    with open(artifacts.digits.written.path, "rb") as file, pytest.raises(AifbError) as caught:
        load(file.fileno(), digest=artifacts.minilm["v1"].written.digest, seal=False)
    assert caught.value.code == "root_mismatch"


PATCHER = """
import ctypes, json, mmap, sys
from node.engine.loader import load
with open(sys.argv[1], "rb") as file:
    loaded = load(file.fileno(), digest=sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
found = {"is_sealed": loaded.is_sealed}
for name, tensor in (("mapped", sys.argv[3]), ("computed", sys.argv[4])):
    page = loaded.tensors[tensor].data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    result = libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 3)
    found[name] = ctypes.get_errno() if result else 0
print(json.dumps(found))
"""


def test_weights_can_not_be_made_writable_again(artifacts: Artifacts) -> None:
    packed = artifacts.minilm["v2"]
    loaded = _load(packed)
    quantised = next(name for name in loaded.tensors if loaded.artifact.quantisation(name) is not None)
    plain = next(name for name in loaded.tensors if loaded.artifact.quantisation(name) is None)
    command = [sys.executable, "-c", PATCHER, str(packed.written.path), packed.written.digest, plain, quantised]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout)
    if not found["is_sealed"]:
        pytest.skip("this kernel has no mseal (Linux 6.10)")
    # a shared map of a file that is open for reading is refused even earlier, with EACCES
    assert found["mapped"] in {errno.EPERM, errno.EACCES}
    assert found["computed"] == errno.EPERM
