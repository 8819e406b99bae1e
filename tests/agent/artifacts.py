"""Small artifacts that an engine can really serve: y = relu(W·x), with ballast to make them span several chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aifb.tensors import TensorData
from aifb.trust import Deployment
from aifb.writer import Written, write_artifact
from tests.agent.keys import deployment, manifest_of
from tests.agent.plane import Plane
from tests.aifb import samples

MODEL = "linear-probe"


def write(path: Path, version: int, *, ballast_bytes: int = 0, columns: int = 24) -> Written:
    """An artifact whose weights depend on `version`: x FP32 [n, 24] → y FP32 [n, 16].

    Other than 24 columns make one that is sound as a file and fails when it is warmed up.
    """
    rng = np.random.default_rng(version)
    tensors = {"weight": TensorData.from_numpy(rng.standard_normal((16, columns), dtype=np.float32))}
    if ballast_bytes:
        tensors["ballast"] = TensorData.from_numpy(rng.integers(0, 256, ballast_bytes, dtype=np.uint8))
    return write_artifact(path, tensors=tensors, graph=samples.graph(), assets={}, entry_points=[samples.entry_point()])


def publish(
    plane: Plane, folder: Path, version: int, *, ballast_bytes: int = 0, columns: int = 24, **fields: object
) -> Deployment:
    """Write, sign and serve an artifact; return the deployment that assigns it."""
    written = write(folder / f"v{version}.aifb", version, ballast_bytes=ballast_bytes, columns=columns)
    made = deployment(
        f"{MODEL}-{version}-{fields.get('role', 'baseline')}",
        model=MODEL,
        version=version,
        digest=written.digest,
        length=written.total_bytes,
        **fields,  # type: ignore[arg-type]
    )
    plane.publish(written.digest, written.path.read_bytes(), manifest_of(made), str(written.path))
    return made
