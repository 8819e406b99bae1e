"""Small artifacts for tests, and a way to put files together that the writer would refuse to write."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from aifb import checks, layout, tree
from aifb import metadata_pb2 as pb
from aifb.header import HEADER_BYTES, Header, align_up
from aifb.tensors import TensorData
from aifb.writer import Written, build_metadata, write_artifact

ASSETS = {"labels.json": ("application/json", b'["no","yes"]')}


def tensors() -> dict[str, TensorData]:
    """A weight, its alias, an empty tensor, a scalar, an int8 matrix with its scale, and bfloat16 bits."""
    weight = TensorData.from_numpy((np.arange(16 * 24, dtype=np.float32).reshape(16, 24) - 190) / 64)
    return {
        "weight": weight,
        "tied": TensorData.alias("weight", weight),
        "bias": TensorData.from_numpy(np.arange(5, dtype=np.int64)),
        "empty": TensorData.from_numpy(np.zeros((0, 3), np.float32)),
        "scalar": TensorData.from_numpy(np.array(2.5)),
        "small": TensorData.from_numpy(np.arange(-6, 6, dtype=np.int8).reshape(3, 4)),
        "small.scale": TensorData.from_numpy(np.array([0.1, 0.2, 0.3], np.float32)),
        "halves": TensorData.from_numpy(np.arange(3, dtype=np.uint16), dtype="bfloat16"),
        "nibbles": TensorData("int4", (3,), b"\x21\x03"),
    }


def quantisation() -> dict[str, pb.Quantisation]:
    """How `small` is to be read."""
    scheme = pb.Quantisation.PER_ROW
    return {"small": pb.Quantisation(scheme=scheme, scale_tensor="small.scale", logical_dtype=pb.FLOAT32)}


def graph() -> pb.Graph:
    """y = relu(linear(x, weight)) over a symbolic batch."""
    batch, made = pb.Dim(symbol="batch"), pb.Graph()
    made.symbols.add(name="batch", min=1, max=64)
    made.inputs.add(name="x", dtype=pb.FLOAT32, dims=[batch, pb.Dim(size=24)])
    linear = [pb.Arg(value="x"), pb.Arg(tensor="weight")]
    made.nodes.add(op="aten.linear.default", name="linear", args=linear, outputs=["linear"])
    made.nodes.add(op="aten.relu.default", name="relu", args=[pb.Arg(value="linear")], outputs=["relu"])
    made.outputs.add(name="y", value="relu", dtype=pb.FLOAT32, dims=[batch, pb.Dim(size=16)])
    return made


def entry_point() -> pb.EntryPoint:
    """x: FP32 [n, 24] → y: FP32 [n, 16]."""
    return pb.EntryPoint(
        name="infer",
        preprocess=pb.Step(kind="none"),
        postprocess=pb.Step(kind="none"),
        inputs=[pb.Port(name="x", datatype="FP32", shape=[-1, 24])],
        outputs=[pb.Port(name="y", datatype="FP32", shape=[-1, 16])],
    )


def write(path: Path) -> Written:
    """Write the sample artifact."""
    return write_artifact(
        path,
        tensors=tensors(),
        graph=graph(),
        assets=ASSETS,
        entry_points=[entry_point()],
        quantisation=quantisation(),
        notes={"producer": "tests"},
    )


def metadata() -> pb.Metadata:
    """The sample artifact's metadata, to be spoilt."""
    return build_metadata(tensors(), graph(), ASSETS, [entry_point()], quantisation(), {"producer": "tests"})


def data() -> bytes:
    """The sample artifact's data region."""
    contents = {name: bytes(tensor.buffer) for name, tensor in tensors().items()}
    contents |= {name: content for name, (_, content) in ASSETS.items()}
    items = checks.stored(metadata())
    return b"".join(contents[i.name] for i in sorted(items, key=lambda i: layout.order_key(i.name, i.length)))


def assemble(
    raw_metadata: bytes,
    data_region: bytes,
    *,
    fields: Mapping[str, int] | None = None,
    padding: bytes | None = None,
) -> bytes:
    """A file with a right root and CRC whatever else is wrong with it; `fields` overwrite the header's."""
    data_offset = align_up(HEADER_BYTES + len(raw_metadata))
    gap = data_offset - HEADER_BYTES - len(raw_metadata)
    body = raw_metadata + (padding or bytes(gap)) + data_region
    header = Header(HEADER_BYTES + len(body), len(raw_metadata), data_offset, len(data_region), bytes(64))
    return seal(replace(header, **(fields or {})), body)


def seal(header: Header, body: bytes) -> bytes:
    """Compute root and CRC over whatever header and body these are."""
    chunks = [body[at : at + (1 << 20)] for at in range(0, len(body), 1 << 20)]
    top = tree.top([tree.leaf(index, chunk) for index, chunk in enumerate(chunks)])
    return replace(header, root=tree.root(header.prefix(), top)).pack() + body
