"""The hostile corpus: files that are wrong in one way each, with the code that the reader must give.

All but the damaged ones carry a right CRC and a right root: whoever makes a hostile file can compute those too.
"""

import struct
from collections.abc import Callable
from dataclasses import replace

import google_crc32c

from aifb import metadata_pb2 as pb
from aifb.header import CHUNK_BYTES, HEADER_BYTES, MAX_METADATA_BYTES, Header
from tests.aifb import samples

Case = tuple[bytes, str]


def sample() -> bytes:
    """The valid file that the cases spoil."""
    return samples.assemble(samples.metadata().SerializeToString(deterministic=True), samples.data())


def with_metadata(spoil: Callable[[pb.Metadata], object], data: bytes | None = None) -> bytes:
    """The sample with its metadata spoilt."""
    metadata = samples.metadata()
    spoil(metadata)
    raw = metadata.SerializeToString(deterministic=True)
    return samples.assemble(raw, samples.data() if data is None else data)


def with_header(**fields: int) -> bytes:
    """The sample with header fields overwritten, root and CRC right for them."""
    content = sample()
    return samples.seal(replace(Header.parse(content), **fields), content[HEADER_BYTES:])


def with_used_padding() -> bytes:
    """The sample with something hidden between metadata and data."""
    raw = samples.metadata().SerializeToString(deterministic=True)
    gap = Header.parse(sample()).data_offset - HEADER_BYTES - len(raw)
    return samples.assemble(raw, samples.data(), padding=bytes(gap - 1) + b"x")


def recrc(content: bytes, at: int, raw: bytes) -> bytes:
    """The file with bytes of its header overwritten and the CRC computed anew."""
    changed = content[:at] + raw + content[at + len(raw) :]
    return changed[:120] + struct.pack("<I", google_crc32c.value(changed[:120])) + changed[124:]


def flipped(content: bytes, at: int) -> bytes:
    """The file with the lowest bit of one byte flipped."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def tensor(metadata: pb.Metadata, name: str) -> pb.Tensor:
    """A tensor entry by name."""
    return next(entry for entry in metadata.tensors if entry.name == name)


def damaged() -> dict[str, Case]:
    """Files that were cut, extended, or changed without an attacker's care."""
    good = sample()
    return {
        "empty file": (b"", "truncated"),
        "half a header": (good[:64], "truncated"),
        "header only": (good[:HEADER_BYTES], "truncated"),
        "one byte short": (good[:-1], "truncated"),
        "one byte too many": (good + b"\0", "trailing_bytes"),
        "a zip file": (b"PK\x03\x04" + good[4:], "bad_magic"),
        "next magic": (recrc(good, 5, b"\x02"), "bad_magic"),
        "next version": (recrc(good, 6, b"\x02\x00"), "bad_version"),
        "version zero": (recrc(good, 6, b"\x00\x00"), "bad_version"),
        "wrong crc": (good[:120] + bytes(4) + good[124:], "bad_crc"),
        "reserved bytes": (good[:124] + b"\x01\0\0\0" + good[128:], "bad_reserved"),
        "foreign root": (recrc(good, 56, bytes(64)), "root_mismatch"),
        "flipped metadata": (flipped(good, 200), "root_mismatch"),
        "flipped padding": (flipped(good, Header.parse(good).data_offset - 1), "root_mismatch"),
        "flipped data": (flipped(good, len(good) - 1), "root_mismatch"),
    }


def bad_headers() -> dict[str, Case]:
    """Every field of the header set against the others."""
    data_offset, data_bytes = (header := Header.parse(sample())).data_offset, header.data_bytes
    beyond, petabyte = 1 << 63, 1 << 50
    return {
        "flags": (with_header(flags=1), "bad_flags"),
        "chunks of two MiB": (with_header(chunk_bytes=2 * CHUNK_BYTES), "bad_chunk_bytes"),
        "chunks of nothing": (with_header(chunk_bytes=0), "bad_chunk_bytes"),
        "metadata inside the header": (with_header(metadata_offset=64), "overlap"),
        "metadata behind a hole": (with_header(metadata_offset=136), "gap"),
        "metadata at the end of the numbers": (with_header(metadata_offset=(1 << 64) - 1), "gap"),
        "metadata one byte too long": (with_header(metadata_bytes=MAX_METADATA_BYTES + 1), "metadata_too_large"),
        "metadata endless": (with_header(metadata_bytes=(1 << 64) - 1), "metadata_too_large"),
        "metadata reaching into the data": (with_header(metadata_bytes=data_offset), "overlap"),
        "data not aligned": (with_header(data_offset=data_offset + 64), "misaligned"),
        "data at zero": (with_header(data_offset=0), "overlap"),
        "data behind a hole": (with_header(data_offset=data_offset + 4096), "gap"),
        "data at the end of the numbers": (with_header(data_offset=(1 << 64) - 4096), "gap"),
        "data length that wraps around": (with_header(data_bytes=(1 << 64) - data_offset), "out_of_range"),
        "data beyond 2^63": (with_header(data_bytes=beyond, total_bytes=beyond + data_offset), "out_of_range"),
        "data shorter than the total": (with_header(data_bytes=data_bytes - 1), "length_mismatch"),
        "data longer than the total": (with_header(data_bytes=data_bytes + 1), "length_mismatch"),
        "total of zero": (with_header(total_bytes=0), "length_mismatch"),
        "total endless": (with_header(total_bytes=(1 << 64) - 1), "length_mismatch"),
        "a petabyte": (with_header(data_bytes=petabyte, total_bytes=petabyte + data_offset), "truncated"),
        "padding in use": (with_used_padding(), "bad_padding"),
    }


def bad_layouts() -> dict[str, Case]:
    """Names, types, shapes and places of tensors and assets."""

    def spoil(name: str, /, **fields: object) -> bytes:
        def change(metadata: pb.Metadata) -> None:
            for field, value in fields.items():
                setattr(tensor(metadata, name), field, value)

        return with_metadata(change)

    def shape(name: str, *sizes: int) -> bytes:
        return with_metadata(lambda m: _set_shape(tensor(m, name), sizes))

    good = samples.metadata()
    scale, small, bias = (tensor(good, name) for name in ("small.scale", "small", "bias"))
    return {
        "no protobuf": (samples.assemble(b"\xff" * 40, samples.data()), "bad_metadata"),
        "text that is not UTF-8": (samples.assemble(b"\x12\x04\x0a\x02\xff\xfe", b""), "bad_metadata"),
        "no metadata at all": (samples.assemble(b"", samples.data()), "bad_version"),
        "next metadata format": (with_metadata(lambda m: setattr(m, "format", 2)), "bad_version"),
        "unknown field": (samples.assemble(_raw(good) + b"\xfa\x3e\x01x", samples.data()), "unknown_field"),
        "unknown field deep inside": (with_metadata(_unknown_field_in_a_node), "unknown_field"),
        "70,000 tensors": (with_metadata(_many_tensors), "too_many"),
        "empty name": (spoil("bias", name=""), "bad_name"),
        "name with a path": (spoil("bias", name="../../etc/passwd"), "bad_name"),
        "name with a zero byte": (spoil("bias", name="bi\0as"), "bad_name"),
        "name of 256 letters": (spoil("bias", name="n" * 256), "bad_name"),
        "hidden file's name": (with_metadata(lambda m: setattr(m.assets[0], "name", ".bashrc")), "bad_name"),
        "two tensors of one name": (spoil("bias", name="scalar"), "duplicate_name"),
        "tensor and asset of one name": (spoil("bias", name="labels.json"), "duplicate_name"),
        "asset without media type": (with_metadata(lambda m: setattr(m.assets[0], "media_type", "")), "bad_metadata"),
        "dtype zero": (spoil("bias", dtype=0), "unknown_dtype"),
        "dtype of the future": (spoil("bias", dtype=99), "unknown_dtype"),
        "shape too large for its bytes": (shape("bias", 6), "bad_shape"),
        "shape too small for its bytes": (shape("bias", 4), "bad_shape"),
        "shape whose product wraps to its bytes": (shape("bias", (1 << 61) + 5), "bad_shape"),
        "shape whose product wraps to zero": (shape("empty", 1 << 32, 1 << 32), "bad_shape"),
        "nine dimensions": (shape("bias", 5, 1, 1, 1, 1, 1, 1, 1, 1), "bad_shape"),
        "length that its shape denies": (spoil("bias", length=48), "bad_shape"),
        "tensor on top of another": (spoil("small.scale", offset=small.offset), "overlap"),
        "asset on top of a tensor": (
            with_metadata(lambda m: setattr(m.assets[0], "offset", bias.offset)),
            "overlap",
        ),
        "tensor behind the data": (spoil("bias", offset=1 << 40), "out_of_range"),
        "offset that wraps around": (spoil("bias", offset=(1 << 64) - 8), "out_of_range"),
        "hole at the end": (with_metadata(lambda _: None, samples.data() + bytes(8)), "gap"),
        "hole where a tensor was": (with_metadata(lambda m: m.tensors.remove(tensor(m, "bias"))), "gap"),
        "data for nobody": (with_metadata(_forget_everything), "gap"),
        "data missing": (with_metadata(lambda _: None, samples.data()[:-8]), "out_of_range"),
        "two tensors swapped": (with_metadata(_swap_neighbours), "bad_layout"),
        "empty tensor in another's place": (spoil("empty", offset=scale.offset), "bad_layout"),
        "empty tensor inside another": (spoil("empty", offset=bias.offset + 8), "overlap"),
    }


def bad_meanings() -> dict[str, Case]:
    """Aliases and quantisation that lead nowhere."""

    def quantisation(**fields: object) -> bytes:
        def change(metadata: pb.Metadata) -> None:
            for field, value in fields.items():
                setattr(tensor(metadata, "small").quantisation, field, value)

        return with_metadata(change)

    def alias(**fields: object) -> bytes:
        def change(metadata: pb.Metadata) -> None:
            for field, value in fields.items():
                setattr(tensor(metadata, "tied"), field, value)

        return with_metadata(change)

    return {
        "alias of itself": (alias(alias_of="tied"), "bad_alias"),
        "alias loop": (with_metadata(_alias_loop), "bad_alias"),
        "alias of an alias": (with_metadata(_alias_chain), "bad_alias"),
        "alias of nothing": (alias(alias_of="nobody"), "bad_alias"),
        "alias of an asset": (alias(alias_of="labels.json"), "bad_alias"),
        "alias of another type": (alias(dtype=pb.INT32), "bad_alias"),
        "alias of another shape": (with_metadata(lambda m: _set_shape(tensor(m, "tied"), (24, 16))), "bad_alias"),
        "alias with an offset": (alias(offset=8), "bad_alias"),
        "alias with a length": (alias(length=1536), "bad_shape"),
        "alias with quantisation": (
            with_metadata(lambda m: tensor(m, "tied").quantisation.CopyFrom(tensor(m, "small").quantisation)),
            "bad_alias",
        ),
        "unknown scheme": (quantisation(scheme=9), "bad_quantisation"),
        "no scheme": (quantisation(scheme=0), "bad_quantisation"),
        "axis that isn't there": (quantisation(axis=2), "bad_quantisation"),
        "scale for the wrong axis": (quantisation(axis=1), "bad_quantisation"),
        "axis of a whole tensor": (quantisation(scheme=pb.Quantisation.PER_TENSOR, axis=1), "bad_quantisation"),
        "scale of rows for a whole tensor": (quantisation(scheme=pb.Quantisation.PER_TENSOR), "bad_quantisation"),
        "scale that isn't there": (quantisation(scale_tensor="nobody"), "bad_quantisation"),
        "scale that is the tensor itself": (quantisation(scale_tensor="small"), "bad_quantisation"),
        "scale of integers": (quantisation(scale_tensor="bias"), "bad_quantisation"),
        "meaning an integer": (quantisation(logical_dtype=pb.INT64), "bad_quantisation"),
        "a float that claims to be quantised": (
            with_metadata(lambda m: tensor(m, "weight").quantisation.CopyFrom(tensor(m, "small").quantisation)),
            "bad_quantisation",
        ),
    }


def bad_graphs() -> dict[str, Case]:
    """Graphs that would run code, read what isn't there, or never end."""

    def arg(made: pb.Arg) -> bytes:
        return with_metadata(lambda m: m.graph.nodes[1].args.append(made))

    def op(name: str) -> bytes:
        return with_metadata(lambda m: setattr(m.graph.nodes[1], "op", name))

    def entry(change: Callable[[pb.EntryPoint], object]) -> bytes:
        return with_metadata(lambda m: change(m.entry_points[0]))

    return {
        "op that opens files": (op("aten.from_file.default"), "unknown_op"),
        "op that writes to weights": (op("aten.add_.Tensor"), "unknown_op"),
        "op that reads stray memory": (op("aten.empty.memory_format"), "unknown_op"),
        "op of another library": (op("os.system"), "unknown_op"),
        "op without overload": (op("aten.relu"), "unknown_op"),
        "op in other case": (op("aten.ReLU.default"), "unknown_op"),
        "no op": (op(""), "unknown_op"),
        "attention with dropout": (with_metadata(_attention_with_dropout), "bad_graph"),
        "node that makes nothing": (with_metadata(lambda m: m.graph.nodes[1].ClearField("outputs")), "bad_graph"),
        "value made twice": (with_metadata(lambda m: _rename_output(m, "linear")), "duplicate_name"),
        "input overwritten": (with_metadata(lambda m: _rename_output(m, "x")), "duplicate_name"),
        "value of no identifier": (with_metadata(lambda m: _rename_output(m, "a b")), "bad_name"),
        "value from later on": (with_metadata(_reversed_nodes), "dangling_reference"),
        "value of its own": (arg(pb.Arg(value="relu")), "dangling_reference"),
        "tensor that isn't there": (arg(pb.Arg(tensor="nobody")), "dangling_reference"),
        "symbol that isn't there": (arg(pb.Arg(symbol="nobody")), "dangling_reference"),
        "output from nowhere": (
            with_metadata(lambda m: setattr(m.graph.outputs[0], "value", "z")),
            "dangling_reference",
        ),
        "argument without a value": (arg(pb.Arg()), "bad_graph"),
        "argument of an unknown dtype": (arg(pb.Arg(dtype=77)), "unknown_dtype"),
        "argument with code": (arg(pb.Arg(str_value="__import__('os')")), "bad_graph"),
        "argument of five nested lists": (arg(_nested(5)), "bad_graph"),
        "argument nested past protobuf's limit": (samples.assemble(_nested_by_hand(500), b""), "bad_metadata"),
        "keyword twice": (with_metadata(_keyword_twice), "duplicate_name"),
        "symbol with an empty range": (with_metadata(lambda m: setattr(m.graph.symbols[0], "max", 0)), "bad_graph"),
        "symbol below zero": (with_metadata(lambda m: setattr(m.graph.symbols[0], "min", -1)), "bad_graph"),
        "symbol twice": (with_metadata(lambda m: m.graph.symbols.append(m.graph.symbols[0])), "duplicate_name"),
        "input without a size": (with_metadata(lambda m: m.graph.inputs[0].dims.append(pb.Dim())), "bad_graph"),
        "input of an unknown symbol": (
            with_metadata(lambda m: setattr(m.graph.inputs[0].dims[0], "symbol", "t")),
            "dangling_reference",
        ),
        "input of an unknown dtype": (
            with_metadata(lambda m: setattr(m.graph.inputs[0], "dtype", 50)),
            "unknown_dtype",
        ),
        "70,000 nodes": (with_metadata(_many_nodes), "too_many"),
        "unknown preprocessing": (entry(lambda e: setattr(e.preprocess, "kind", "exec")), "unknown_step"),
        "no postprocessing": (entry(lambda e: e.ClearField("postprocess")), "unknown_step"),
        "step with a missing asset": (
            entry(lambda e: e.preprocess.params.update({"asset": "../tokenizer.json"})),
            "dangling_reference",
        ),
        "entry point twice": (with_metadata(lambda m: m.entry_points.append(m.entry_points[0])), "duplicate_name"),
        "port of an unknown datatype": (entry(lambda e: setattr(e.inputs[0], "datatype", "FP33")), "unknown_dtype"),
        "port of a negative size": (entry(lambda e: e.inputs[0].shape.append(-2)), "bad_shape"),
        "port twice": (entry(lambda e: e.inputs.append(e.inputs[0])), "duplicate_name"),
    }


def _raw(metadata: pb.Metadata) -> bytes:
    return metadata.SerializeToString(deterministic=True)


def _set_shape(entry: pb.Tensor, sizes: tuple[int, ...]) -> None:
    entry.shape[:] = sizes


def _unknown_field_in_a_node(metadata: pb.Metadata) -> None:
    metadata.graph.nodes[0].MergeFromString(b"\xfa\x3e\x01x")


def _many_tensors(metadata: pb.Metadata) -> None:
    for index in range(70_000):
        metadata.tensors.add(name=f"t{index}", dtype=pb.INT8, shape=[0])


def _many_nodes(metadata: pb.Metadata) -> None:
    for index in range(70_000):
        metadata.graph.nodes.add(op="aten.t.default", args=[pb.Arg(value="x")], outputs=[f"n{index}"])


def _forget_everything(metadata: pb.Metadata) -> None:
    metadata.ClearField("tensors")
    metadata.ClearField("assets")


def _swap_neighbours(metadata: pb.Metadata) -> None:
    """Swap places of two tensors that tile the same stretch the other way round."""
    scale, small = tensor(metadata, "small.scale"), tensor(metadata, "small")
    scale.offset, small.offset = small.offset, scale.offset


def _alias_loop(metadata: pb.Metadata) -> None:
    weight = tensor(metadata, "weight")
    weight.alias_of, weight.offset, weight.length = "tied", 0, 0


def _alias_chain(metadata: pb.Metadata) -> None:
    weight = tensor(metadata, "weight")
    metadata.tensors.add(name="third", dtype=weight.dtype, shape=weight.shape, alias_of="tied")


def _attention_with_dropout(metadata: pb.Metadata) -> None:
    node = metadata.graph.nodes[1]
    node.op = "aten.scaled_dot_product_attention.default"
    node.kwargs.add(name="dropout_p", arg=pb.Arg(float_value=0.5))


def _rename_output(metadata: pb.Metadata, name: str) -> None:
    metadata.graph.nodes[1].outputs[0] = name


def _reversed_nodes(metadata: pb.Metadata) -> None:
    first, second = metadata.graph.nodes
    nodes = [pb.Node(), pb.Node()]
    nodes[0].CopyFrom(second)
    nodes[1].CopyFrom(first)
    metadata.graph.ClearField("nodes")
    metadata.graph.nodes.extend(nodes)


def _keyword_twice(metadata: pb.Metadata) -> None:
    for _ in range(2):
        metadata.graph.nodes[1].kwargs.add(name="alpha", arg=pb.Arg(int_value=1))


def _nested(depth: int) -> pb.Arg:
    made = pb.Arg(int_value=1)
    for _ in range(depth):
        made = pb.Arg(list=pb.ArgList(items=[made]))
    return made


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field, for lengths below 2^14."""
    size = len(content)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + content


def _nested_by_hand(depth: int) -> bytes:
    """Metadata whose only node has an argument nested so deeply that protobuf itself would not build it."""
    made = b""
    for _ in range(depth):
        made = _field(10, _field(1, made))  # Arg.list, ArgList.items
    return _field(3, _field(3, _field(3, made)))  # Metadata.graph, Graph.nodes, Node.args


CASES: dict[str, Case] = {**damaged(), **bad_headers(), **bad_layouts(), **bad_meanings(), **bad_graphs()}
