"""Versions of a tiny real model, published over REST as a publisher would: packed, hashed, signed, uploaded."""

import base64
import tempfile
from pathlib import Path

import numpy as np

from aifb.importers.capture import Captured
from aifb.importers.pack import Packed, pack_model
from aifb.signing import load_private_key
from aifb.tensors import TensorData
from cli.client import Client
from tests.artifacts import entry_point, linear_graph, signed_manifest

WIDTH = 16
# Several chunks of 1 MiB, so that a fetch can be cut in its middle; nothing computes with it.
BALLAST_BYTES = 3 << 20


def publish(api: Client, release_key: Path, model: str, *, is_good: bool) -> int:
    """Publish the next version: a good one answers nearly as all good ones do, a bad one quite differently."""
    reserved = api.post(f"models/{model}/versions:reserve", {"task": "embedding", "notes": "", "source_commit": ""})
    number = int(reserved["number"])
    with tempfile.TemporaryDirectory() as folder:
        packed = _pack(Path(folder) / "model.aifb", number, is_good=is_good)
        api.upload(packed.written.digest, Path(packed.written.path))
    envelope = signed_manifest(packed, model, number, load_private_key(release_key.read_bytes()))
    api.post(
        f"models/{model}/versions/{number}:publish",
        {
            "digest": packed.written.digest,
            "manifest": base64.b64encode(envelope).decode(),
            "lineage_inputs": packed.inputs.as_dict(),
            "graph_hash": packed.graph_hash,
            "baseline_metrics": {},
            "precision": "float32",
        },
    )
    return number


def _pack(path: Path, number: int, *, is_good: bool) -> Packed:
    shared = np.random.default_rng(7).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    own = np.random.default_rng(1_000 + number).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    weights = shared + 0.01 * own if is_good else own
    ballast = np.random.default_rng(number).bytes(BALLAST_BYTES)
    return pack_model(
        path,
        Captured(graph=linear_graph(WIDTH), tensors={"w": TensorData.from_numpy(weights)}),
        entry_point=entry_point(WIDTH),
        assets={"ballast.bin": ("application/octet-stream", ballast)},
        sources={"prepare.py": b"scale = 1\n"},
        seeds={"prepare": 7},
        build="sha256:0123",
        packages={"numpy": "2.0"},
    )
