"""Everything metadata must satisfy before one byte of it is used. The writer runs the same checks before it writes.

Hostile metadata is at most 4 MiB (the header's limit), but its counts, names, ranks and depths are bounded as well:
nothing here takes more than linear time or follows a reference twice.
"""

import re

from google.protobuf.message import DecodeError

from aifb import dtypes, graph_checks, layout
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError

FORMAT = 1
MAX_ENTRIES = 65_536  # tensors plus assets
MAX_RANK = 8
MAX_MEDIA_TYPE = 127

_LOGICAL = (pb.FLOAT16, pb.BFLOAT16, pb.FLOAT32)  # what a quantised tensor may stand for
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_MEDIA_TYPE = re.compile(r"[a-z0-9.+\-]+/[a-z0-9.+\-]+")


def parse_metadata(raw: bytes, data_bytes: int) -> pb.Metadata:
    """Parse metadata and check all of it against a data region of `data_bytes`.

    Raises AifbError: bad_metadata, bad_version, unknown_field, and the codes of `check_metadata`.
    """
    metadata = pb.Metadata()
    try:
        metadata.ParseFromString(raw)
    except DecodeError as error:
        raise AifbError("bad_metadata", "The metadata is no valid protobuf message: fetch the file again.") from error
    size = metadata.ByteSize()
    metadata.DiscardUnknownFields()
    if metadata.ByteSize() != size:
        raise AifbError("unknown_field", "The metadata has fields that this reader does not know: use a newer reader.")
    check_metadata(metadata, data_bytes)
    return metadata


def check_metadata(metadata: pb.Metadata, data_bytes: int) -> None:
    """Check parsed metadata: names, types, shapes, aliases, layout, quantisation, graph, entry points.

    Raises AifbError: bad_version, too_many, bad_name, duplicate_name, unknown_dtype, bad_shape, bad_alias,
    bad_quantisation, the codes of layout.check and of graph_checks.
    """
    if metadata.format != FORMAT:
        raise AifbError("bad_version", f"Metadata format {metadata.format} is unknown, this reader knows {FORMAT}.")
    if len(metadata.tensors) + len(metadata.assets) > MAX_ENTRIES:
        raise AifbError("too_many", f"The artifact lists more than {MAX_ENTRIES} tensors and assets.")
    tensors: dict[str, pb.Tensor] = {}
    names: set[str] = set()
    for tensor in metadata.tensors:
        check_new_name(tensor.name, names, "tensor")
        tensors[tensor.name] = tensor
        _check_shape(tensor)
    for asset in metadata.assets:
        check_new_name(asset.name, names, "asset")
        if len(asset.media_type) > MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(asset.media_type):
            raise AifbError("bad_metadata", f"Asset {asset.name!r} has no valid media type.")
    for tensor in tensors.values():
        _check_alias(tensor, tensors)
        _check_quantisation(tensor, tensors)
    layout.check([layout.Span(item.name, item.offset, item.length) for item in stored(metadata)], data_bytes)
    graph_checks.check_graph(metadata.graph, tensors)
    graph_checks.check_entry_points(metadata, {asset.name for asset in metadata.assets})


def stored(metadata: pb.Metadata) -> list[pb.Tensor | pb.Asset]:
    """The tensors and assets that have bytes of their own in the data region."""
    return [*(tensor for tensor in metadata.tensors if not tensor.alias_of), *metadata.assets]


def check_new_name(name: str, seen: set[str], kind: str) -> None:
    """Check a name's form and add it to `seen`; raises AifbError: bad_name, duplicate_name."""
    if not _NAME.fullmatch(name):
        raise AifbError("bad_name", f"The {kind} name {name[:80]!r} is not 1 to 255 letters, digits, '_', '.' or '-'.")
    if name in seen:
        raise AifbError("duplicate_name", f"The name {name!r} is given twice, the second time to a {kind}.")
    seen.add(name)


def _check_shape(tensor: pb.Tensor) -> None:
    info = dtypes.by_number(tensor.dtype, f"Tensor {tensor.name!r}")
    if len(tensor.shape) > MAX_RANK:
        raise AifbError("bad_shape", f"Tensor {tensor.name!r} has {len(tensor.shape)} dimensions, {MAX_RANK} at most.")
    expected = 0 if tensor.alias_of else dtypes.byte_length(info, tuple(tensor.shape))
    if tensor.length != expected:
        raise AifbError(
            "bad_shape", f"Tensor {tensor.name!r} has {tensor.length} bytes, its type and shape demand {expected}."
        )


def _check_alias(tensor: pb.Tensor, tensors: dict[str, pb.Tensor]) -> None:
    if not tensor.alias_of:
        return
    target = tensors.get(tensor.alias_of)
    if target is None or target.alias_of:
        raise AifbError("bad_alias", f"Tensor {tensor.name!r} must be an alias of a tensor that has bytes of its own.")
    if tensor.offset or tensor.HasField("quantisation"):
        raise AifbError("bad_alias", f"Alias {tensor.name!r} must take offset and quantisation from its target.")
    if tensor.dtype != target.dtype or tensor.shape != target.shape:
        raise AifbError("bad_alias", f"Alias {tensor.name!r} differs from {target.name!r} in type or shape.")


def _check_quantisation(tensor: pb.Tensor, tensors: dict[str, pb.Tensor]) -> None:
    if not tensor.HasField("quantisation"):
        return
    quantisation, shape = tensor.quantisation, tensor.shape
    per_row = quantisation.scheme == pb.Quantisation.PER_ROW
    if not per_row and quantisation.scheme != pb.Quantisation.PER_TENSOR:
        raise AifbError("bad_quantisation", f"Tensor {tensor.name!r} has an unknown quantisation scheme.")
    if quantisation.axis >= (len(shape) if per_row else 1):
        raise AifbError("bad_quantisation", f"Tensor {tensor.name!r} is quantised along an axis that it lacks.")
    if tensor.dtype not in (pb.INT8, pb.INT4) or quantisation.logical_dtype not in _LOGICAL:
        raise AifbError("bad_quantisation", f"Tensor {tensor.name!r} must be stored as int8 or int4 and mean a float.")
    scale = tensors.get(quantisation.scale_tensor)
    expected = [shape[quantisation.axis]] if per_row else [1]
    if scale is None or scale.dtype != pb.FLOAT32 or list(scale.shape) != expected or scale.HasField("quantisation"):
        raise AifbError("bad_quantisation", f"Tensor {tensor.name!r} needs a plain float32 scale tensor of {expected}.")
