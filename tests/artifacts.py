"""Small real artifacts, really signed: what tests above the registry publish and roll out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from aifb import metadata_pb2 as pb
from aifb import signing
from aifb.importers.capture import Captured
from aifb.importers.pack import Packed, pack_model
from aifb.manifest import MANIFEST_TYPE, make_manifest
from aifb.tensors import TensorData
from aifb.trust import ROOT_TYPE, make_root


@dataclass(frozen=True)
class Keys:
    """The private keys of an installation and its first trust root."""

    root: RSAPrivateKey
    release: RSAPrivateKey
    director: RSAPrivateKey
    envelope: bytes

    @classmethod
    def generate(cls) -> Keys:
        root, release, director = (signing.generate_key() for _ in range(3))
        return cls(root, release, director, root_envelope(root, release, director))


def root_envelope(root: RSAPrivateKey, release: RSAPrivateKey, director: RSAPrivateKey, **changes: Any) -> bytes:
    """A signed trust root; `changes` override version, expires, director_epoch, or `signers`."""
    signers = changes.pop("signers", [root])
    fields: dict[str, Any] = {
        "version": 1,
        "expires": datetime.now(UTC) + timedelta(days=365),
        "director_epoch": 1,
        "roles": {
            "root": [root.public_key()],
            "release": [release.public_key()],
            "director": [director.public_key()],
        },
    }
    return signing.sign(make_root(**(fields | changes)), ROOT_TYPE, signers)


def linear_graph(width: int) -> pb.Graph:
    """y = x · wᵀ over float32 (batch, width)."""
    batch, size = pb.Dim(symbol="batch"), pb.Dim(size=width)
    return pb.Graph(
        symbols=[pb.Symbol(name="batch", min=1, max=64)],
        inputs=[pb.GraphInput(name="x", dtype=pb.FLOAT32, dims=[batch, size])],
        nodes=[
            pb.Node(
                op="aten.linear.default", name="linear", args=[pb.Arg(value="x"), pb.Arg(tensor="w")], outputs=["y"]
            )
        ],
        outputs=[pb.GraphOutput(name="y", value="y", dtype=pb.FLOAT32, dims=[batch, size])],
    )


def entry_point(width: int) -> pb.EntryPoint:
    step = pb.Step(kind="none")
    ports = {"shape": [-1, width], "datatype": "FP32"}
    return pb.EntryPoint(
        name="infer",
        preprocess=step,
        postprocess=step,
        inputs=[pb.Port(name="x", **ports)],
        outputs=[pb.Port(name="y", **ports)],
    )


def pack(path: Path, *, seed: int = 0, width: int = 16, packages: dict[str, str] | None = None) -> Packed:
    """Write a tiny linear model; another seed is another artifact."""
    weights = np.random.default_rng(seed).standard_normal((width, width), dtype=np.float32)
    return pack_model(
        path,
        Captured(graph=linear_graph(width), tensors={"w": TensorData.from_numpy(weights)}),
        entry_point=entry_point(width),
        assets={},
        sources={"prepare.py": b"scale = 1\n"},
        seeds={"prepare": 7},
        build="sha256:0123",
        packages=packages or {"numpy": "2.0"},
    )


def manifest_of(packed: Packed, model: str, number: int, **changes: Any) -> bytes:
    """The payload that its publisher signs; `changes` make it say something else."""
    fields: dict[str, Any] = {
        "model": model,
        "version": number,
        "digest": packed.written.digest,
        "length": packed.written.total_bytes,
        "flat_sha3_512": packed.written.flat_sha3_512,
        "lineage": packed.lineage.as_dict(),
        "created": datetime.now(UTC),
    }
    return make_manifest(**(fields | changes))


def signed_manifest(packed: Packed, model: str, number: int, key: RSAPrivateKey, **changes: Any) -> bytes:
    return signing.sign(manifest_of(packed, model, number, **changes), MANIFEST_TYPE, [key])


def with_lineage(packed: Packed, **parts: str) -> dict[str, str]:
    """The lineage with some hashes replaced."""
    return replace(packed.lineage, **parts).as_dict()
