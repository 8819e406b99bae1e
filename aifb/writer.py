"""Write an artifact: same input, same bytes; complete under its name or not there at all."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aifb import checks, dtypes, layout, tree
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.header import HEADER_BYTES, MAX_METADATA_BYTES, PREFIX_BYTES, Header, align_up
from aifb.tensors import TensorData

Asset = tuple[str, bytes]  # (media type, bytes)


@dataclass(frozen=True)
class Written:
    """What was written; `digest` is the tree's root, `flat_sha3_512` what `openssl dgst -sha3-512` prints (hex)."""

    digest: str
    total_bytes: int
    flat_sha3_512: str
    path: Path


def write_artifact(
    path: str | Path,
    *,
    tensors: Mapping[str, TensorData],
    graph: pb.Graph,
    assets: Mapping[str, Asset],
    entry_points: Iterable[pb.EntryPoint],
    quantisation: Mapping[str, pb.Quantisation] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Written:
    """Write one artifact to `path` by way of a temporary file beside it, fsync and rename.

    Raises AifbError with the code the reader would give: what it refuses is never written.
    """
    metadata = build_metadata(tensors, graph, assets, entry_points, quantisation or {}, notes or {})
    raw = metadata.SerializeToString(deterministic=True)
    if len(raw) > MAX_METADATA_BYTES:
        raise AifbError("metadata_too_large", f"The metadata takes {len(raw)} bytes, 4 MiB at most: shorten the names.")
    items = sorted(checks.stored(metadata), key=lambda item: layout.order_key(item.name, item.length))
    buffers = [tensors[i.name].buffer if isinstance(i, pb.Tensor) else assets[i.name][1] for i in items]
    data_offset = align_up(HEADER_BYTES + len(raw))
    data_bytes = sum(item.length for item in items)
    header = Header(data_offset + data_bytes, len(raw), data_offset, data_bytes, bytes(64))
    header.check()
    checks.check_metadata(metadata, data_bytes)
    padding = bytes(data_offset - HEADER_BYTES - len(raw))
    return _write_file(Path(path), header, [raw, padding, *buffers])


def build_metadata(
    tensors: Mapping[str, TensorData],
    graph: pb.Graph,
    assets: Mapping[str, Asset],
    entry_points: Iterable[pb.EntryPoint],
    quantisation: Mapping[str, pb.Quantisation],
    notes: Mapping[str, str],
) -> pb.Metadata:
    """Lay tensors and assets out and describe them, in name order. Raises AifbError: duplicate_name, bad_shape."""
    if both := tensors.keys() & assets.keys():
        raise AifbError("duplicate_name", f"{min(both)!r} names a tensor and an asset: rename one.")
    lengths = [(name, tensor.byte_length) for name, tensor in tensors.items() if not tensor.alias_of]
    lengths += [(name, len(content)) for name, (_, content) in assets.items()]
    offsets = {span.name: span.offset for span in layout.place(lengths)}
    metadata = pb.Metadata(format=checks.FORMAT, graph=graph, entry_points=entry_points, notes=notes)
    for name, tensor in sorted(tensors.items()):
        tensor.check(name)
        metadata.tensors.add(
            name=name,
            dtype=dtypes.by_name(tensor.dtype).number,
            shape=tensor.shape,
            offset=offsets.get(name, 0),
            length=tensor.byte_length,
            alias_of=tensor.alias_of,
            quantisation=quantisation.get(name),
        )
    for name, (media_type, content) in sorted(assets.items()):
        metadata.assets.add(name=name, media_type=media_type, offset=offsets[name], length=len(content))
    return metadata


def _write_file(path: Path, header: Header, parts: list[bytes | memoryview]) -> Written:
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w+b") as file:
            file.write(bytes(HEADER_BYTES))
            for part in parts:
                file.write(part)
            file.flush()
            top = tree.top(tree.leaves_of_fd(file.fileno(), header.total_bytes))
            prefix = header.prefix()
            header = Header(
                header.total_bytes,
                header.metadata_bytes,
                header.data_offset,
                header.data_bytes,
                tree.root(prefix[:PREFIX_BYTES], top),
            )
            file.seek(0)
            file.write(header.pack())
            file.flush()
            file.seek(0)
            flat = hashlib.file_digest(file, "sha3_512").hexdigest()
            # Content-addressed: nobody has a reason to write to it again, and mapped files must not change.
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)
    return Written(header.root.hex(), header.total_bytes, flat, path)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
